"""How `kernels.causal_conv` is cut into grid steps, and weights into blocks, to fit the vector memory and to keep the matrix
units busy. Computes numbers only; the kernel itself is in that module.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
ROW_ALIGNMENT = 16  # sublanes of a bfloat16 tile
MATRIX_UNIT = 256  # depth and width on v6e and v7x: what a product is padded to there
TAPS = 3  # columns, and rows
VMEM_LIMIT_BYTES = 52 * 2**20  # of the 64 MiB that the smallest core has (v5p, v7x)
PLANNED_BYTES = 46 * 2**20  # the part that `TilePlan` may use; the compiler keeps spilled registers in the rest
MOST_WEIGHT_BYTES = 22 * 2**20  # the largest weight that stays in the vector memory whole, bfloat16
# The most cycles of whole matrix tiles in a program without a loop: for all frames, and for the products of one. Longer programs
# take libtpu too long: it schedules some 2,000 bundles a second (2026-11-21, one core).
UNROLLED_CYCLES, FRAME_CYCLES = 10_000, 6_000
ROWS_A_CYCLE = 4  # of a tile's product, both matrix units of v6e together
ENOUGH_ROWS = 192  # in a matrix product: loading the matrix unit's 256 x 256 tile takes as long as 128 rows


def padded_channels(channels: int) -> int:
    """Channels as these arrays hold them: a multiple of 128, the rest zero."""
    return math.ceil(channels / LANES) * LANES


def padded_rows(rows: int) -> int:
    """Rows as these arrays hold them: a multiple of 16, the rest zero."""
    return math.ceil(rows / ROW_ALIGNMENT) * ROW_ALIGNMENT


def channel_blocks(channels: int, out: int) -> int:
    """The number of blocks of output channels in which a weight comes: one, or so many that two blocks fit into the memory, with
    whole tiles of the matrix unit if possible. A weight for one frame alone, too, because a block's program is compiled once."""
    one = 2 * TAPS**3 * channels  # bytes of one output channel
    if one * out <= MOST_WEIGHT_BYTES:
        return 1
    sizes = [size for size in range(LANES, out, LANES) if out % size == 0 and 2 * one * size <= 4 / 3 * MOST_WEIGHT_BYTES]
    return out // max(sizes, key=lambda size: (size % MATRIX_UNIT == 0, size), default=LANES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TilePlan:
    """One grid step: `columns` of the frames, all `count` frames of them and the `earlier` ones, to `width` output channels.

    `rows` are those of the arrays, `num_rows` those of the picture, beyond which there are zeros or, if it `repeats_rows`, its
    first and last row again; `factor` is 2 if the picture is doubled. `weight_buffers` is 1 if the weight stays in memory, or if
    two blocks do not fit.
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
    def of(
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
        """The cut for frames [F, W, H, C] and a weight of these shapes: so many columns that the matrix unit has enough rows for
        each of its tiles, as far as everything fits into the memory."""
        count, columns, rows, channels = shape
        factor = 2 if doubles else 1
        divisors = [size for size in range(1, columns + 1) if columns % size == 0]
        most_columns = next((size for size in divisors if factor * size * rows >= ENOUGH_ROWS), columns)
        cuts = [
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
        return next((cut for cut in cuts if cut.vmem_bytes <= PLANNED_BYTES), cuts[-1])

    @property
    def made_columns(self) -> int:
        return self.factor * self.columns

    @property
    def made_rows(self) -> int:
        """Rows of the results' arrays: no more than the doubled picture needs."""
        return padded_rows(2 * self.num_rows) if self.factor == 2 else self.rows

    @property
    def row_parts(self) -> int:
        """A product's columns over the output channels: the kernel's three rows, or the four for doubled rows."""
        return TAPS + self.factor - 1

    @property
    def depth(self) -> int:
        return TAPS * self.channels

    @property
    def is_unrolled(self) -> bool:
        """Whether the program has the code of every frame, one's end beside the next one's products; else it has a loop."""
        return self.count == 1 or self.count * self.frame_cycles <= UNROLLED_CYCLES

    @property
    def loops_over_taps(self) -> bool:
        """Whether one frame's products are also a loop, over the frames that it sees."""
        return self.earlier > 0 and self.frame_cycles > FRAME_CYCLES

    @property
    def frame_cycles(self) -> int:
        """Cycles of v6e's matrix units for the products of one frame, in whole tiles."""
        depth, width = (self.earlier + 1) * self.depth, self.row_parts * self.width
        tiles = math.ceil(depth / MATRIX_UNIT) * math.ceil(width / MATRIX_UNIT)
        return tiles * self.made_columns * self.rows // ROWS_A_CYCLE

    @property
    def vmem_bytes(self) -> int:
        """Bytes of vector memory, in bfloat16; inputs and outputs count twice: the next ones are copied while these are used."""
        frames, pixels = self.earlier + self.count, self.made_columns * self.rows
        column, results = frames * self.rows * self.channels, self.count * pixels * self.factor * self.width
        weight = self.weight_buffers * (self.earlier + 1) * self.depth * self.row_parts * self.width
        gathered, products = frames * pixels * self.depth, 2 * pixels * self.row_parts * self.width
        doubled = pixels * self.factor * self.width if self.factor == 2 else 0
        pipelined = 2 * ((self.columns + 2) * column + self.outputs * results + self.residuals * results // self.factor**2)
        return 2 * (weight + pipelined + 2 * column + gathered) + 4 * (products + doubled)

    def scratch(self, dtype: jnp.dtype) -> list[pl.MemoryRef]:
        """The columns that each column sees, side by side; if rows are doubled, one buffer for each 128 channels; if products
        are a loop, their sum."""
        gathered = pltpu.VMEM((self.earlier + self.count, self.columns, self.factor, self.rows, self.depth), dtype)
        buffers = self.width // LANES if self.factor == 2 else 0
        doubled = [pltpu.VMEM((self.made_columns * self.factor * self.rows, LANES), jnp.float32)] * buffers
        summed = pltpu.VMEM((self.made_columns * self.rows, self.row_parts * self.width), jnp.float32)
        return [gathered, *doubled, *([summed] if self.loops_over_taps else [])]
