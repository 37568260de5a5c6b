"""Convolution over frames, columns and rows, causal over frames, as the VAE needs it on a TPU: it reads each array once.

Arrays are [frames, columns, rows, channels]: channels along the lanes, rows along the sublanes, columns outside, so that a
neighbouring column or an earlier frame is only another address. A grid step makes some columns of every frame: the 3 x 3 columns
and frames that they see are the depth of matrix products, whose columns are the three rows of the kernel; these are shifted by a
row and added, which completes the convolution. The operations after it in the network (bias, the residual, the next norm and its
SiLU) are done before anything is written. A weight too large for the vector memory comes in blocks of output channels, one after
the other. Knows no network.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.causal_conv_cut import (
    LANES,
    MATRIX_UNIT,
    TAPS,
    VMEM_LIMIT_BYTES,
    TilePlan,
    channel_blocks,
    padded_channels,
)

NORM_EPS = 1e-12  # torch.nn.functional.normalize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epilogue:
    """The operations on the sum before it is written.

    `residuals` are added: one [F, W, H, N]; or, if the picture is doubled, two, for the upper and for the lower of the two rows
    that come from one. Those are [F', W', H, N], where F' divides the frames and W' the columns; each value is repeated to fill
    them. `norm` [N] float32 is the weight of an RMS norm over `norm_width` channels followed by SiLU. `keeps_sum`: the sum itself
    is written; with `norm`, its normalised form is too.
    """

    residuals: tuple[jax.Array, ...] = ()
    norm: jax.Array | None = None
    norm_width: int = 0
    keeps_sum: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edges:
    """The columns left and right of the array, [T + F, 1, H, C] each, the frames before included: another chip's, or zero."""

    left: jax.Array
    right: jax.Array


def arrange_weight(weight: jax.Array) -> jax.Array:
    """[N, C, T + 1, rows 3, columns 3], as PyTorch has it, to matrices [B, (T + 1) * 3 * C', 3 * N' / B] with padded channels."""
    out, channels, frames, rows, columns = weight.shape
    padding = ((0, padded_channels(out) - out), (0, padded_channels(channels) - channels), (0, 0), (0, 0), (0, 0))
    depth = frames * columns * padded_channels(channels)
    blocks = channel_blocks(padded_channels(channels), padded_channels(out))
    ordered = jnp.pad(weight, padding).transpose(2, 4, 1, 3, 0).reshape(depth, rows, blocks, -1)
    return ordered.transpose(2, 0, 1, 3).reshape(blocks, depth, -1)


def swap_rows_and_columns(weight: jax.Array, frames: int) -> jax.Array:
    """An arranged weight for a picture that lies on its side; `frames` is T + 1. Moves whole tiles only."""
    blocks, depth, width = weight.shape
    parts = weight.reshape(blocks, frames, TAPS, depth // frames // TAPS, TAPS, width // TAPS)
    return parts.swapaxes(2, 4).reshape(weight.shape)


def causal_conv(
    frames: jax.Array,
    before: jax.Array | None,
    weight: jax.Array,
    bias: jax.Array,
    edges: Edges,
    epilogue: Epilogue,
    *,
    num_rows: int,
    repeats_rows: bool = False,
    doubles: bool = False,
    interpret: bool = False,
) -> tuple[jax.Array | None, jax.Array | None]:
    """The sum and its normalised form, [F, W, H, N'] each, or None if the epilogue leaves it out.

    `frames` [F, W, H, C'] and, unless T = 0, the frames `before` them, [T, W, H, C'] or the last T of some multiple of T;
    `weight` as `arrange_weight` makes it, for T + 1 frames; `bias` [N'] float32. Rows from `num_rows` on must be zero, and are
    zero in the results. Above and below the picture there are zeros or, with `repeats_rows`, its first and its last row again;
    what is left and right of it, the edges say. With `doubles` the picture is first made twice as wide and high, each pixel four
    times: then W of the results is twice that of `frames`, and H is `padded_rows` of twice `num_rows`, which still counts the
    rows of `frames`.
    """
    if epilogue.norm is not None and weight.shape[0] > 1:  # the norm needs all channels, a grid step has some of them
        whole = Epilogue(residuals=epilogue.residuals)
        total, _ = causal_conv(
            frames,
            before,
            weight,
            bias,
            edges,
            whole,
            num_rows=num_rows,
            repeats_rows=repeats_rows,
            doubles=doubles,
            interpret=interpret,
        )
        assert total is not None, "`whole` keeps it"
        normal = norm_and_silu(total.astype(jnp.float32), epilogue.norm, epilogue.norm_width).astype(total.dtype)
        return total if epilogue.keeps_sum else None, normal
    weight = _for_doubled_rows(weight) if doubles else weight
    cut = TilePlan.of(
        frames.shape,
        weight.shape,
        num_rows=num_rows,
        repeats_rows=repeats_rows,
        doubles=doubles,
        residuals=len(epilogue.residuals),
        outputs=int(epilogue.keeps_sum) + int(epilogue.norm is not None),
    )
    inputs, specs = _inputs(cut, frames, before, weight, bias, edges, epilogue)
    blocks, columns = weight.shape[0], cut.factor * frames.shape[1]
    result_spec = pl.BlockSpec((cut.count, cut.made_columns, cut.made_rows, cut.width), lambda part, step: (0, step, 0, part))
    result_shape = jax.ShapeDtypeStruct((cut.count, columns, cut.made_rows, blocks * cut.width), frames.dtype)
    results = pl.pallas_call(
        functools.partial(_kernel, cut=cut, epilogue=_flags(epilogue)),
        grid=(blocks, frames.shape[1] // cut.columns),
        in_specs=specs,
        out_specs=[result_spec] * cut.outputs,
        out_shape=[result_shape] * cut.outputs,
        scratch_shapes=cut.scratch(frames.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VMEM_LIMIT_BYTES),
        cost_estimate=_cost(cut, columns, weight.shape, is_normalised=epilogue.norm is not None),
        interpret=interpret,
        name="causal_conv",
    )(*inputs)
    total = results[0] if epilogue.keeps_sum else None
    return total, results[-1] if epilogue.norm is not None else None


def norm_and_silu(total: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """silu(`rms_norm`) of the same arguments."""
    scaled = rms_norm(total, weight, width)
    return scaled * jax.nn.sigmoid(scaled)


def rms_norm(total: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """The RMS norm of float32 [..., N'] over its `width` channels; the padded ones are zero and stay zero."""
    length = jnp.sqrt(jnp.sum(total * total, axis=-1, keepdims=True))
    return total * (width**0.5 / jnp.maximum(length, NORM_EPS)) * weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flags:
    """The epilogue without its arrays."""

    norm_width: int
    has_norm: bool
    keeps_sum: bool


def _flags(epilogue: Epilogue) -> _Flags:
    return _Flags(
        norm_width=epilogue.norm_width,
        has_norm=epilogue.norm is not None,
        keeps_sum=epilogue.keeps_sum,
    )


def _inputs(
    cut: TilePlan,
    frames: jax.Array,
    before: jax.Array | None,
    weight: jax.Array,
    bias: jax.Array,
    edges: Edges,
    epilogue: Epilogue,
) -> tuple[list[jax.Array], list[pl.BlockSpec]]:
    """The kernel's arrays in its order, and the block of each that a grid step sees."""
    last = frames.shape[1] - 1
    inputs: list[jax.Array] = []
    specs: list[pl.BlockSpec] = []
    has_earlier = cut.earlier > 0 and before is not None
    for array, count in [(before, cut.earlier), (frames, cut.count)] if has_earlier else [(frames, cut.count)]:
        inputs += [array] * 3
        specs += [
            _columns_at(array, count, 1, lambda step: jnp.maximum(step * cut.columns - 1, 0)),  # past the ends is the last one,
            _columns_at(array, count, cut.columns, lambda step: step),
            _columns_at(array, count, 1, lambda step: jnp.minimum((step + 1) * cut.columns, last)),  # which an edge replaces
        ]
    inputs += [edges.left, edges.right, weight, bias[None]]
    specs += [pl.BlockSpec(edges.left.shape, lambda part, step: (0, 0, 0, 0), pipeline_mode=pl.Buffered(1))] * 2
    block = (1, *weight.shape[1:])
    specs.append(pl.BlockSpec(block, lambda part, step: (part, 0, 0), pipeline_mode=pl.Buffered(cut.weight_buffers)))
    specs.append(pl.BlockSpec((1, cut.width), lambda part, step: (0, part)))
    for residual in epilogue.residuals:
        inputs.append(residual)
        size = cut.columns * residual.shape[1] // frames.shape[1]
        block = (residual.shape[0], size, cut.rows, cut.width)
        specs.append(pl.BlockSpec(block, lambda part, step: (0, step, 0, part)))
    if epilogue.norm is not None:
        inputs.append(epilogue.norm[None])
        specs.append(pl.BlockSpec((1, cut.width), lambda part, step: (0, 0)))
    return inputs, specs


def _columns_at(array: jax.Array, count: int, size: int, place: Callable[[jax.Array], jax.Array]) -> pl.BlockSpec:
    """`size` columns of the last `count` frames, from the column `size * place(step)` on."""
    last = array.shape[0] // count - 1
    return pl.BlockSpec((count, size, *array.shape[2:]), lambda part, step: (last, place(step), 0, 0))


def _cost(cut: TilePlan, columns: int, weight: tuple[int, ...], *, is_normalised: bool) -> pl.CostEstimate:
    """Products as the matrix unit does them, in whole tiles, for `columns` of results; bytes that move; elements that are
    normalised. libtpu's schedules for v6e take 1.1 times the products' cycles, plus 3 for each 1,024 normalised
    elements (docs/lab/tpu-kernels.md)."""
    blocks, depth, width = weight[0], *(math.ceil(size / MATRIX_UNIT) * MATRIX_UNIT for size in weight[1:])
    pixels, elements = cut.count * columns * cut.rows, cut.count * columns * cut.made_rows * blocks * cut.width
    read = blocks * (cut.earlier + cut.count) * columns // cut.factor * cut.rows * cut.channels * (cut.columns + 2) // cut.columns
    return pl.CostEstimate(
        flops=2 * blocks * pixels * depth * width,
        bytes_accessed=2 * (math.prod(weight) + read + cut.outputs * elements),
        transcendentals=elements if is_normalised else 0,
    )


def _for_doubled_rows(weight: jax.Array) -> jax.Array:
    """[B, K, 3 N] to [B, K, 4 N]: when each row is repeated, the kernel's three rows see only two different ones. The upper copy
    takes the first from the row above and the other two from its own row; the lower copy takes the first two from its own row
    and the last from the row below."""
    first, middle, last = jnp.split(weight, TAPS, axis=-1)
    return jnp.concatenate([first, middle + last, first + middle, last], axis=-1)


def _kernel(*given: jax.Ref, cut: TilePlan, epilogue: _Flags) -> None:
    """One grid step: some columns of every frame."""
    refs = list(given)
    sources = [[refs.pop(0) for _ in range(3)] for _ in range(2 if cut.earlier else 1)]
    edges = refs.pop(0), refs.pop(0)
    weight, bias = refs.pop(0), refs.pop(0)
    residuals = [refs.pop(0) for _ in range(cut.residuals)]
    norm = refs.pop(0) if epilogue.has_norm else None
    results, (gathered, *doubled) = refs[: cut.outputs], refs[cut.outputs :]
    summed = doubled.pop() if cut.loops_over_taps else None
    _gather(sources, edges, gathered, cut)

    def make_frame(frame: jax.Array | int) -> None:
        products = _products(gathered, weight, summed, frame, cut)
        addends = [_residual_of(ref, frame, cut) for ref in residuals]
        total = (_double_rows(products, addends, doubled, cut) if doubled else _add_rows(products, addends, cut)) + bias[...]
        total = jnp.where(_row_indices(total.shape) < cut.factor * cut.num_rows, total, 0.0)
        if epilogue.keeps_sum:
            results[0][frame] = total.astype(results[0].dtype)
        if norm is not None:
            results[-1][frame] = norm_and_silu(total, norm[...], epilogue.norm_width).astype(results[-1].dtype)

    if cut.is_unrolled:  # so that one frame's end runs beside the next one's products
        for frame in range(cut.count):
            make_frame(frame)
    else:
        jax.lax.fori_loop(0, cut.count, lambda frame, _: make_frame(frame), None)


def _products(gathered: jax.Ref, weight: jax.Ref, summed: jax.Ref | None, frame: jax.Array | int, cut: TilePlan) -> jax.Array:
    """[columns * H, row parts * N] of one frame: its products and the earlier frames', summed, in `summed` if there is one."""

    if summed is None:  # one product for all, because each product's depth is padded to whole tiles of the matrix unit
        inputs = jnp.concatenate([gathered[frame + tap].reshape(-1, cut.depth) for tap in range(cut.earlier + 1)], axis=-1)
        return jnp.dot(inputs, weight[0], preferred_element_type=jnp.float32)

    def add_tap(tap: jax.Array, _: None) -> None:
        inputs, part = gathered[frame + tap].reshape(-1, cut.depth), weight[0, pl.ds(tap * cut.depth, cut.depth)]
        summed[...] = jnp.where(tap == 0, 0.0, summed[...]) + jnp.dot(inputs, part, preferred_element_type=jnp.float32)

    jax.lax.fori_loop(0, cut.earlier + 1, add_tap, None)
    return summed[...]


def _gather(sources: list[list[jax.Ref]], edges: tuple[jax.Ref, jax.Ref], gathered: jax.Ref, cut: TilePlan) -> None:
    """Writes for each frame and each column of the result the columns that it sees, side by side."""
    is_first, is_last = pl.program_id(1) == 0, pl.program_id(1) == pl.num_programs(1) - 1
    places = [0, cut.earlier, cut.earlier + cut.count] if cut.earlier else [0, cut.count]
    for (left, middle, right), start, end in zip(sources, places[:-1], places[1:], strict=True):
        frames = slice(start, end)
        left = jnp.where(is_first, edges[0][frames], left[...])
        right = jnp.where(is_last, edges[1][frames], right[...])
        for column in range(cut.factor):
            for tap in range(TAPS):
                shift, lanes = (column + tap - 1) // cut.factor, _slice(tap, cut.channels)
                if shift == 0:
                    gathered[frames, :, column, :, lanes] = middle[...]
                    continue
                inner, outer = (slice(1, None), slice(0, 1)) if shift < 0 else (slice(0, -1), slice(cut.columns - 1, None))
                gathered[frames, outer, column, :, lanes] = left if shift < 0 else right
                if cut.columns > 1:
                    gathered[frames, inner, column, :, lanes] = middle[:, :-1] if shift < 0 else middle[:, 1:]


def _slice(place: int, size: int) -> slice:
    return slice(place * size, (place + 1) * size)


def _residual_of(ref: jax.Ref, frame: jax.Array | int, cut: TilePlan) -> jax.Array:
    """[columns, H, N] float32: the residual for the columns of the result."""
    frames, columns = ref.shape[:2]
    added = ref[frame // (cut.count // frames)].astype(jnp.float32)
    times = cut.made_columns // columns
    if times == 1:
        return added
    return jnp.concatenate([added[column // times][None] for column in range(cut.made_columns)])


def _double_rows(products: jax.Array, added: list[jax.Array], doubled: list[jax.Ref], cut: TilePlan) -> jax.Array:
    """[columns * H, 4 N] of `_for_doubled_rows` to [columns, doubled H, N], through one buffer for each 128 channels."""
    count = products.shape[0]
    from_above, upper, lower, from_below = (products[:, _slice(part, cut.width)] for part in range(4))
    upper += _rolled(from_above, 1, cut)
    lower += _rolled(from_below, -1, cut)
    if added:
        upper, lower = (part + more.reshape(part.shape) for part, more in zip((upper, lower), added, strict=True))
    for part, ref in enumerate(doubled):  # a strided store takes 128 lanes
        ref[pl.ds(0, count, 2)] = upper[:, _slice(part, LANES)]
        ref[pl.ds(1, count, 2)] = lower[:, _slice(part, LANES)]
    both = jnp.concatenate([ref[...] for ref in doubled], axis=-1).reshape(cut.made_columns, 2 * cut.rows, cut.width)
    return both[:, : cut.made_rows]


def _add_rows(products: jax.Array, added: list[jax.Array], cut: TilePlan) -> jax.Array:
    """[columns * H, 3 N], each row's share of the row below it, of itself and of the row above it, and the residual, summed to
    [columns, H, N]."""
    from_above, own, from_below = (products[:, _slice(part, cut.width)] for part in range(TAPS))
    total = _rolled(from_above, 1, cut) + own + _rolled(from_below, -1, cut)
    return sum(added, total.reshape(cut.made_columns, cut.rows, cut.width))


def _rolled(rows: jax.Array, by: int, cut: TilePlan) -> jax.Array:
    """[columns * H, N], each column's rows moved down by one, or up by -1; the row that enters is zero, or the one that it pushes
    on if rows are repeated."""
    moved = pltpu.roll(rows, by % rows.shape[0], 0).reshape(cut.made_columns, cut.rows, cut.width)
    incoming = 0 if by > 0 else cut.num_rows - 1 if cut.repeats_rows else cut.rows - 1
    entering = rows.reshape(moved.shape) if cut.repeats_rows else 0.0
    return jnp.where(_row_indices(moved.shape) == incoming, entering, moved).reshape(rows.shape)


def _row_indices(shape: tuple[int, ...]) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, 1)
