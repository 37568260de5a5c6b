"""The tile plan of `kernels.causal_conv`: sizes of grid steps and of blocks of the weight that fit into the vector memory."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
ROW_ALIGNMENT = 16  # rows of a bfloat16 vector register
MATRIX_UNIT = 256  # depth and width of the matrix unit on v6e and v7x; matrices are padded to multiples of it
TAPS = 3  # number of columns of the convolution's filter, and of its rows
VMEM_LIMIT_BYTES = 52 * 2**20  # vector memory that the kernel requests; the smallest core has 64 MiB (v5p, v7x)
PLANNED_BYTES = 46 * 2**20  # memory that a `TilePlan` may use; the compiler needs the other part for spilled registers
MOST_WEIGHT_BYTES = 22 * 2**20  # a larger weight is divided into blocks; bytes in bfloat16
# Most cycles of the matrix unit that code without a loop may take. Longer code compiles too slowly: libtpu schedules about 2,000
# bundles a second (2026-11-21, one core).
UNROLLED_CYCLES = 10_000  # for all frames together; above this limit, the kernel loops over the frames
FRAME_CYCLES = 6_000  # for one frame; above this limit, the kernel loops over the frame and its earlier frames
ROWS_A_CYCLE = 4  # rows that v6e's two matrix units together multiply by a 256 x 256 tile in one cycle
ENOUGH_ROWS = 192  # rows of an efficient product: loading a 256 x 256 tile takes as long as multiplying 128 rows


def padded_channels(channels: int) -> int:
    return math.ceil(channels / LANES) * LANES


def padded_rows(rows: int) -> int:
    return math.ceil(rows / ROW_ALIGNMENT) * ROW_ALIGNMENT


def channel_blocks(channels: int, out: int) -> int:
    """Return the number of blocks of output channels into which a weight is divided.

    `channels` and `out` are the numbers of input and output channels. A divided weight needs two blocks in the memory, because
    the next block is loaded during a grid step. If possible, the channels of a block are a multiple of `MATRIX_UNIT`. The weight
    of a single frame is divided into the same number.
    """
    one = 2 * TAPS**3 * channels  # bytes of the weight for one output channel and three frames, bfloat16
    if one * out <= MOST_WEIGHT_BYTES:
        return 1
    sizes = [size for size in range(LANES, out, LANES) if out % size == 0 and 2 * one * size <= 4 / 3 * MOST_WEIGHT_BYTES]
    return out // max(sizes, key=lambda size: (size % MATRIX_UNIT == 0, size), default=LANES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TilePlan:
    """The sizes of one grid step.

    Attributes:
        count, earlier: number of frames, and of earlier frames that the convolution sees for each frame.
        columns: number of input columns in a grid step.
        rows, num_rows: number of rows of the input frames, with and without padding.
        repeats_rows: pad above and below with the first and last row instead of zeros.
        channels, width: number of input channels, and of output channels in a block.
        factor: 2 if width and height of the frames are doubled, else 1.
        residuals, outputs: number of residual arrays, and of arrays that the kernel writes.
        weight_buffers: 2 if the next block of the weight is loaded during a grid step. 1 if there is one block, or if two do not
            fit.
    """

    count: int
    earlier: int
    columns: int
    rows: int
    num_rows: int
    repeats_rows: bool
    channels: int
    width: int
    factor: int
    residuals: int
    outputs: int
    weight_buffers: int

    @classmethod
    def choose(
        cls,
        shape: tuple[int, ...],
        weight: tuple[int, ...],
        *,
        num_rows: int,
        repeats_rows: bool = False,
        doubles: bool,
        residuals: int,
        outputs: int,
    ) -> TilePlan:
        """Choose the plan. `shape` is the shape of the frames [F, W, H, C], `weight` the shape of the arranged weight. The plan
        has enough columns to keep the matrix unit busy, or fewer if the memory is too small.
        """
        count, columns, rows, channels = shape
        factor = 2 if doubles else 1
        divisors = [size for size in range(1, columns + 1) if columns % size == 0]
        most_columns = next((size for size in divisors if factor * size * rows >= ENOUGH_ROWS), columns)
        plans = [
            cls(
                count=count,
                earlier=weight[1] // (TAPS * channels) - 1,
                columns=size,
                rows=rows,
                num_rows=num_rows,
                repeats_rows=repeats_rows,
                channels=channels,
                width=weight[2] // (TAPS + doubles),
                factor=factor,
                residuals=residuals,
                outputs=outputs,
                weight_buffers=buffers,
            )
            for buffers in ((2, 1) if weight[0] > 1 else (1,))
            for size in reversed(divisors[: divisors.index(most_columns) + 1])
        ]
        return next((plan for plan in plans if plan.vmem_bytes <= PLANNED_BYTES), plans[-1])

    @property
    def output_columns(self) -> int:
        return self.factor * self.columns

    @property
    def output_rows(self) -> int:
        return padded_rows(2 * self.num_rows) if self.factor == 2 else self.rows

    @property
    def row_parts(self) -> int:
        """Number of parts into which columns of the weight and of products are divided: three for the filter's rows, or four if
        rows are doubled."""
        return TAPS + self.factor - 1

    @property
    def depth(self) -> int:
        return TAPS * self.channels

    @property
    def is_unrolled(self) -> bool:
        """True if the kernel has separate code for every frame. False if it loops over the frames."""
        return self.count == 1 or self.count * self.frame_cycles <= UNROLLED_CYCLES

    @property
    def loops_over_taps(self) -> bool:
        """True if a loop multiplies the frame and each earlier frame. False if one product covers all frames."""
        return self.earlier > 0 and self.frame_cycles > FRAME_CYCLES

    @property
    def frame_cycles(self) -> int:
        """Cycles of v6e's matrix units for the products of one frame, with matrices padded to multiples of `MATRIX_UNIT`."""
        depth, width = (self.earlier + 1) * self.depth, self.row_parts * self.width
        tiles = math.ceil(depth / MATRIX_UNIT) * math.ceil(width / MATRIX_UNIT)
        return tiles * self.output_columns * self.rows // ROWS_A_CYCLE

    @property
    def vmem_bytes(self) -> int:
        """Bytes of vector memory for bfloat16 arrays. Inputs and outputs count twice, because the next block is copied
        meanwhile."""
        frames, pixels = self.earlier + self.count, self.output_columns * self.rows
        column, results = frames * self.rows * self.channels, self.count * pixels * self.factor * self.width
        weight = self.weight_buffers * (self.earlier + 1) * self.depth * self.row_parts * self.width
        gathered, products = frames * pixels * self.depth, 2 * pixels * self.row_parts * self.width
        doubled = pixels * self.factor * self.width if self.factor == 2 else 0
        pipelined = 2 * ((self.columns + 2) * column + self.outputs * results + self.residuals * results // self.factor**2)
        return 2 * (weight + pipelined + 2 * column + gathered) + 4 * (products + doubled)

    def scratch_shapes(self, dtype: jnp.dtype) -> list[pl.MemoryRef]:
        """Return the scratch arrays: the gathered columns, one buffer for each 128 channels of doubled rows, and a buffer for a
        loop that adds the products.
        """
        gathered = pltpu.VMEM((self.earlier + self.count, self.columns, self.factor, self.rows, self.depth), dtype)
        buffers = self.width // LANES if self.factor == 2 else 0
        doubled = [pltpu.VMEM((self.output_columns * self.factor * self.rows, LANES), jnp.float32)] * buffers
        summed = pltpu.VMEM((self.output_columns * self.rows, self.row_parts * self.width), jnp.float32)
        return [gathered, *doubled, *([summed] if self.loops_over_taps else [])]
