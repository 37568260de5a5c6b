"""Convolution over frames, columns and rows, causal over frames, as the video decoder needs it on a TPU: one pass an array.

Arrays are [frames, columns, rows, channels]: channels along the lanes, rows along the sublanes, columns outside, so that a
neighbouring column or an earlier frame is only another address. A grid step makes one column of every frame: the 3 x 3 columns
and frames that it sees lie side by side as the depth of one matrix product, whose columns are the three rows of the kernel;
shifting these by a row and adding them ends the convolution. What follows it in the network (bias, the residual, the next
norm and its SiLU) is done before anything is written. Knows no network.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
ROW_ALIGNMENT = 16  # sublanes of a bfloat16 tile
MATRIX_UNIT = 256  # depth and width on v6e and v7x: what a product is padded to there
TAPS = 3  # columns, and rows
NORM_EPS = 1e-12  # torch.nn.functional.normalize
VMEM_LIMIT_BYTES = 48 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epilogue:
    """What is done to the sum before it is written.

    `residual` [F, W, H, N] is added; `norm` [N] float32 is the weight of an RMS norm over `norm_width` channels followed by
    SiLU. `keeps_sum`: the sum itself is written; with `norm`, its normalised form is too.
    """

    residual: jax.Array | None = None
    norm: jax.Array | None = None
    norm_width: int = 0
    keeps_sum: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edges:
    """The columns left and right of the array, [T + F, 1, H, C] each, the frames before included: another chip's, or zero."""

    left: jax.Array
    right: jax.Array


def padded_channels(channels: int) -> int:
    """Channels as these arrays hold them: a multiple of 128, the rest zero."""
    return math.ceil(channels / LANES) * LANES


def padded_rows(rows: int) -> int:
    """Rows as these arrays hold them: a multiple of 16, the rest zero."""
    return math.ceil(rows / ROW_ALIGNMENT) * ROW_ALIGNMENT


def arrange_weight(weight: jax.Array) -> jax.Array:
    """[N, C, T + 1, rows 3, columns 3], as PyTorch has it, to the matrix [(T + 1) * 3 * C', 3 * N'] of padded channels."""
    out, channels, frames, rows, columns = weight.shape
    padding = ((0, padded_channels(out) - out), (0, padded_channels(channels) - channels), (0, 0), (0, 0), (0, 0))
    ordered = jnp.pad(weight, padding).transpose(2, 4, 1, 3, 0)
    return ordered.reshape(frames * columns * padded_channels(channels), rows * padded_channels(out))


def swap_rows_and_columns(weight: jax.Array, frames: int) -> jax.Array:
    """An arranged weight for a picture that lies on its side; `frames` is T + 1. Moves whole tiles only."""
    depth, width = weight.shape
    parts = weight.reshape(frames, TAPS, depth // frames // TAPS, TAPS, width // TAPS)
    return parts.swapaxes(1, 3).reshape(depth, width)


def causal_conv(
    frames: jax.Array,
    before: jax.Array | None,
    weight: jax.Array,
    bias: jax.Array,
    edges: Edges,
    epilogue: Epilogue,
    *,
    num_rows: int,
    doubles: bool = False,
    interpret: bool = False,
) -> tuple[jax.Array | None, jax.Array | None]:
    """The sum and its normalised form, [F, W, H, N'] each, or None where the epilogue leaves it out.

    `frames` [F, W, H, C'] and the T frames `before` them [T, W, H, C'], None for T = 0; `weight` as `arrange_weight` makes it,
    for T + 1 frames; `bias` [N'] float32. Rows from `num_rows` on must be zero, and are zero in what comes out. With
    `doubles` the picture is first made twice as wide and high, each pixel four times: then W and H of the results are twice
    those of `frames`, and `num_rows` still counts those of `frames`.
    """
    count, columns, rows, channels = frames.shape
    width = weight.shape[1] // TAPS
    earlier, factor = 0 if before is None else before.shape[0], 2 if doubles else 1
    weight = _for_doubled_rows(weight) if doubles else weight
    column = functools.partial(_column_of, columns=columns, rows=rows, factor=factor)
    made_column = functools.partial(_column_of, columns=factor * columns, rows=factor * rows)
    sources = [frames] if before is None else [before, frames]
    inputs = [array for array in sources for _ in range(TAPS)]
    specs = [column(array.shape[0], channels, shift) for array in sources for shift in (-1, 0, 1)]
    inputs += [edges.left, edges.right, weight, bias[None]]
    specs += [_whole(array.shape) for array in inputs[-4:]]
    if epilogue.residual is not None:
        inputs.append(epilogue.residual)
        specs.append(made_column(count, width, 0))
    if epilogue.norm is not None:
        inputs.append(epilogue.norm[None])
        specs.append(_whole((1, width)))
    outputs = int(epilogue.keeps_sum) + int(epilogue.norm is not None)
    made = pl.pallas_call(
        functools.partial(_kernel, count=count, earlier=earlier, num_rows=factor * num_rows, epilogue=_flags(epilogue)),
        grid=(factor * columns,),
        in_specs=specs,
        out_specs=[made_column(count, width, 0)] * outputs,
        out_shape=[jax.ShapeDtypeStruct((count, factor * columns, factor * rows, width), frames.dtype)] * outputs,
        scratch_shapes=[pltpu.VMEM((factor * rows, LANES), jnp.float32)] * (width // LANES if doubles else 0),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VMEM_LIMIT_BYTES),
        cost_estimate=_cost((count, factor * columns, rows, channels), weight.shape, factor * outputs * width,
                            normalised=factor * width if epilogue.norm is not None else 0),
        interpret=interpret,
        name="causal_conv",
    )(*inputs)
    total = made[0] if epilogue.keeps_sum else None
    return total, made[-1] if epilogue.norm is not None else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flags:
    """The epilogue without its arrays."""

    has_residual: bool
    norm_width: int | None
    keeps_sum: bool


def _flags(epilogue: Epilogue) -> _Flags:
    return _Flags(
        has_residual=epilogue.residual is not None,
        norm_width=epilogue.norm_width if epilogue.norm is not None else None,
        keeps_sum=epilogue.keeps_sum,
    )


def _column_of(frames: int, channels: int, shift: int, *, columns: int, rows: int, factor: int = 1) -> pl.BlockSpec:
    """All frames of the column that stands `shift` columns away where each stands `factor` times; past the ends the last one,
    which an edge replaces."""

    def place(index: jax.Array) -> tuple:
        return 0, jnp.clip(index + shift, 0, factor * columns - 1) // factor, 0, 0

    return pl.BlockSpec((frames, 1, rows, channels), place)


def _whole(shape: tuple[int, ...]) -> pl.BlockSpec:
    return pl.BlockSpec(shape, lambda index: (0,) * len(shape))


def _cost(shape: tuple[int, ...], weight: tuple[int, ...], written: int, normalised: int) -> pl.CostEstimate:
    """Products as the matrix unit does them, in whole tiles, and the elements that are `written` and `normalised` a row of
    [F, W, H, C]. libtpu's schedules for v6e come to 1.1 times the products' cycles and 3 a 1,024 normalised elements
    (docs/performance.md)."""
    depth, width = (math.ceil(size / MATRIX_UNIT) * MATRIX_UNIT for size in weight)
    pixels = math.prod(shape[:3])
    return pl.CostEstimate(
        flops=2 * pixels * depth * width, bytes_accessed=2 * pixels * (weight[0] + written), transcendentals=pixels * normalised
    )


def _for_doubled_rows(weight: jax.Array) -> jax.Array:
    """[K, 3 N] to [K, 4 N]: of pixels that stand in two rows each, a kernel's three rows see two. The upper of the two rows
    takes the first from the row above and the other two from its own; the lower one the first two from its own, and so on."""
    first, middle, last = jnp.split(weight.astype(jnp.float32), TAPS, axis=1)
    return jnp.concatenate([first, middle + last, first + middle, last], axis=1).astype(weight.dtype)


def _kernel(*refs, count: int, earlier: int, num_rows: int, epilogue: _Flags) -> None:
    """One column of every frame."""
    refs = list(refs)
    sources = [[refs.pop(0) for _ in range(TAPS)] for _ in range(2 if earlier else 1)]
    edges = refs.pop(0), refs.pop(0)
    weight, bias = refs.pop(0), refs.pop(0)
    residual = refs.pop(0) if epilogue.has_residual else None
    norm = refs.pop(0) if epilogue.norm_width is not None else None
    outputs = int(epilogue.keeps_sum) + int(norm is not None)
    refs, scratch = refs[:outputs], refs[outputs:]  # scratch is there where rows are doubled
    seen = [_frame(sources, edges, index, earlier) for index in range(earlier + count)]
    for frame in range(count):
        depth = jnp.concatenate([tap for taps in seen[frame : frame + earlier + 1] for tap in taps], axis=-1)
        products = jnp.dot(depth, weight[...], preferred_element_type=jnp.float32)
        total = (_double_rows(products, scratch) if scratch else _add_rows(products)) + bias[...]
        if residual is not None:
            total += residual[frame, 0].astype(jnp.float32)
        total = jnp.where(_row_indices(total.shape) < num_rows, total, 0.0)
        if epilogue.keeps_sum:
            refs[0][frame, 0] = total.astype(refs[0].dtype)
        if norm is not None:
            refs[-1][frame, 0] = _normalised(total, norm[...], epilogue.norm_width).astype(refs[-1].dtype)


def _frame(sources, edges, index: int, earlier: int) -> list[jax.Array]:
    """The left, middle and right column of one frame, [H, C] each."""
    refs = sources[0] if index < earlier or not earlier else sources[1]
    place = index if index < earlier or not earlier else index - earlier
    left, middle, right = (ref[place, 0] for ref in refs)
    step, last = pl.program_id(0), pl.num_programs(0) - 1
    left = jnp.where(step == 0, edges[0][index, 0], left)
    return [left, middle, jnp.where(step == last, edges[1][index, 0], right)]


def _double_rows(products: jax.Array, scratch: list) -> jax.Array:
    """[H, 4 N] of `_for_doubled_rows` to [2 H, N], through one buffer for each 128 channels."""
    rows, width = products.shape[0], products.shape[1] // 4
    from_above, upper, lower, from_below = (products[:, part * width : (part + 1) * width] for part in range(4))
    index = _row_indices(upper.shape)
    upper += jnp.where(index == 0, 0.0, pltpu.roll(from_above, 1, 0))
    lower += jnp.where(index == rows - 1, 0.0, pltpu.roll(from_below, rows - 1, 0))
    for part, ref in enumerate(scratch):  # a store with a stride takes 128 lanes
        lanes = slice(part * LANES, (part + 1) * LANES)
        ref[pl.ds(0, rows, 2)] = upper[:, lanes]
        ref[pl.ds(1, rows, 2)] = lower[:, lanes]
    return jnp.concatenate([ref[...] for ref in scratch], axis=-1)


def _add_rows(products: jax.Array) -> jax.Array:
    """[H, 3 N], each row's share of the row below it, of itself and of the row above it, summed to [H, N]."""
    rows, width = products.shape[0], products.shape[1] // TAPS
    from_above, own, from_below = (products[:, part * width : (part + 1) * width] for part in range(TAPS))
    index = _row_indices(own.shape)
    from_above = jnp.where(index == 0, 0.0, pltpu.roll(from_above, 1, 0))
    from_below = jnp.where(index == rows - 1, 0.0, pltpu.roll(from_below, rows - 1, 0))
    return from_above + own + from_below


def _row_indices(shape: tuple[int, ...]) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, 0)


def _normalised(total: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """silu(rms_norm(total)) in float32; the padded channels are zero and stay so."""
    length = jnp.sqrt(jnp.sum(total * total, axis=-1, keepdims=True))
    scaled = total * (width**0.5 / jnp.maximum(length, NORM_EPS)) * weight
    return scaled * jax.nn.sigmoid(scaled)
