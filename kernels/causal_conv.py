"""Convolution over frames, columns and rows for the VAE on a TPU, causal over frames. The kernel reads each array once.

Arrays are [frames, columns, rows, channels]: [F, W, H, C] before the convolution, [F, W, H, N] after it. C' and N' are the
numbers of channels with padding. T is the number of earlier frames that the convolution sees for each frame. In the vector
registers, channels are along the lanes and rows along the sublanes. Therefore the kernel reads a neighbouring column or an
earlier frame from another address, without moving values within registers.

A grid step computes some columns of every frame. The depth of its matrix products is the channels of three columns in T + 1
frames, joined. A product has three parts, one for each row of the 3 x 3 filter. The parts for the upper and lower row are shifted
by one row, then the three parts are added. Then bias, residual, next norm and SiLU follow. A weight that is too large for the
vector memory is divided into blocks of output channels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.causal_conv_tiling import LANES, MATRIX_UNIT, TAPS, VMEM_LIMIT_BYTES, TilePlan, channel_blocks, padded_channels

NORM_EPS = 1e-12  # the default `eps` of torch.nn.functional.normalize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epilogue:
    """The operations on the sum of convolution, bias and residuals, which has F frames, W columns and N channels.

    Attributes:
        residuals: arrays [F', W', H, N] that are added. At most one array, or two if the convolution doubles rows: one for the
            upper and one for the lower row of each pair. Each value is added to F / F' frames and W / W' columns of the sum.
        norm: [N] float32, the weight of an RMS norm over the first `norm_width` channels. The kernel writes the result of this
            norm and of SiLU. None: no norm and no SiLU.
        keeps_sum: the kernel also writes the sum before the norm.
    """

    residuals: tuple[jax.Array, ...] = ()
    norm: jax.Array | None = None
    norm_width: int = 0
    keeps_sum: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edges:
    """The columns left and right of the convolved frames and of the T earlier frames, [T + F, 1, H, C] each. If frames are
    divided over chips, these are columns of the neighbouring chips. At the border, they are padding.
    """

    left: jax.Array
    right: jax.Array


def arrange_weight(weight: jax.Array) -> jax.Array:
    """Arrange PyTorch's weight [N, C, T + 1, 3 rows, 3 columns] as B blocks of output channels.

    The result is [B, (T + 1) * 3 * C', 3 * N' / B].
    """
    out, channels, frames, rows, columns = weight.shape
    padding = ((0, padded_channels(out) - out), (0, padded_channels(channels) - channels), (0, 0), (0, 0), (0, 0))
    depth = frames * columns * padded_channels(channels)
    blocks = channel_blocks(padded_channels(channels), padded_channels(out))
    ordered = jnp.pad(weight, padding).transpose(2, 4, 1, 3, 0).reshape(depth, rows, blocks, -1)
    return ordered.transpose(2, 0, 1, 3).reshape(blocks, depth, -1)


def swap_rows_and_columns(weight: jax.Array, frames: int) -> jax.Array:
    """Swap the filter's rows and columns in a result of `arrange_weight` for `frames` = T + 1."""
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
    """Convolve `frames`, then apply the epilogue.

    Returns: the sum of convolution, bias and residuals (None without `epilogue.keeps_sum`), and the result of norm and SiLU (None
    without `epilogue.norm`). Each is [F, W, H, N'].

    Args:
        frames: [F, W, H, C'].
        before: the T frames before `frames`, [T, W, H, C'], or a multiple of T, whose last T are used. None if T = 0.
        weight: result of `arrange_weight` for T + 1 frames.
        bias: [N'] float32.
        num_rows: number of rows without padding. Padding rows must be zero, and are zero in the results.
        repeats_rows: pad above and below with the first and last row instead of zeros.
        doubles: first double the width and height by repeating pixels. The results then have 2 W columns and
            `padded_rows(2 * num_rows)` rows. `num_rows` still counts the rows of `frames`.
    """
    norm, keeps_sum = epilogue.norm, epilogue.keeps_sum
    if norm is not None and weight.shape[0] > 1:  # the norm needs all channels, but a grid step has only one block
        options: dict[str, Any] = dict(num_rows=num_rows, repeats_rows=repeats_rows, doubles=doubles, interpret=interpret)
        whole = Epilogue(residuals=epilogue.residuals)
        total, _ = causal_conv(frames, before, weight, bias, edges, whole, **options)
        assert total is not None, "`whole` keeps the sum"
        normal = norm_and_silu(total.astype(jnp.float32), norm, epilogue.norm_width).astype(total.dtype)
        return total if keeps_sum else None, normal
    weight = _weight_for_doubled_rows(weight) if doubles else weight
    plan = TilePlan.choose(
        frames.shape,
        weight.shape,
        num_rows=num_rows,
        repeats_rows=repeats_rows,
        doubles=doubles,
        residuals=len(epilogue.residuals),
        outputs=int(keeps_sum) + int(norm is not None),
    )
    inputs, specs = _make_inputs(plan, frames, before, weight, bias, edges, epilogue)
    blocks, columns = weight.shape[0], plan.factor * frames.shape[1]
    block = (plan.count, plan.output_columns, plan.output_rows, plan.width)
    result_spec = pl.BlockSpec(block, lambda part, step: (0, step, 0, part))
    result_shape = jax.ShapeDtypeStruct((plan.count, columns, plan.output_rows, blocks * plan.width), frames.dtype)
    norm_width = None if norm is None else epilogue.norm_width
    results = pl.pallas_call(
        functools.partial(_kernel, plan=plan, norm_width=norm_width, keeps_sum=keeps_sum),
        grid=(blocks, frames.shape[1] // plan.columns),
        in_specs=specs,
        out_specs=[result_spec] * plan.outputs,
        out_shape=[result_shape] * plan.outputs,
        scratch_shapes=plan.scratch_shapes(frames.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VMEM_LIMIT_BYTES),
        cost_estimate=_estimate_cost(plan, columns, weight.shape, is_normalised=norm is not None),
        interpret=interpret,
        name="causal_conv",
    )(*inputs)
    return results[0] if keeps_sum else None, results[-1] if norm is not None else None


def norm_and_silu(total: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    scaled = rms_norm(total, weight, width)
    return scaled * jax.nn.sigmoid(scaled)


def rms_norm(total: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """Apply the RMS norm over the first `width` channels of [..., N'] float32. Padding channels must be zero, and stay zero."""
    length = jnp.sqrt(jnp.sum(total * total, axis=-1, keepdims=True))
    return total * (width**0.5 / jnp.maximum(length, NORM_EPS)) * weight


def _make_inputs(
    plan: TilePlan,
    frames: jax.Array,
    before: jax.Array | None,
    weight: jax.Array,
    bias: jax.Array,
    edges: Edges,
    epilogue: Epilogue,
) -> tuple[list[jax.Array], list[pl.BlockSpec]]:
    last = frames.shape[1] - 1
    inputs: list[jax.Array] = []
    specs: list[pl.BlockSpec] = []
    has_earlier = plan.earlier > 0 and before is not None
    for array, count in [(before, plan.earlier), (frames, plan.count)] if has_earlier else [(frames, plan.count)]:
        inputs += [array] * 3
        specs += [
            # The first and the third BlockSpec read the columns left and right of the columns of the second BlockSpec. At the
            # borders, these columns do not exist. The BlockSpecs then read other columns, which the kernel replaces by `edges`.
            _columns_at(array, count, 1, lambda step: jnp.maximum(step * plan.columns - 1, 0)),
            _columns_at(array, count, plan.columns, lambda step: step),
            _columns_at(array, count, 1, lambda step: jnp.minimum((step + 1) * plan.columns, last)),
        ]
    inputs += [edges.left, edges.right, weight, bias[None]]
    specs += [pl.BlockSpec(edges.left.shape, lambda part, step: (0, 0, 0, 0), pipeline_mode=pl.Buffered(1))] * 2
    block = (1, *weight.shape[1:])
    specs.append(pl.BlockSpec(block, lambda part, step: (part, 0, 0), pipeline_mode=pl.Buffered(plan.weight_buffers)))
    specs.append(pl.BlockSpec((1, plan.width), lambda part, step: (0, part)))
    for residual in epilogue.residuals:
        inputs.append(residual)
        size = plan.columns * residual.shape[1] // frames.shape[1]
        block = (residual.shape[0], size, plan.rows, plan.width)
        specs.append(pl.BlockSpec(block, lambda part, step: (0, step, 0, part)))
    if epilogue.norm is not None:
        inputs.append(epilogue.norm[None])
        specs.append(pl.BlockSpec((1, plan.width), lambda part, step: (0, 0)))
    return inputs, specs


def _columns_at(array: jax.Array, count: int, size: int, place: Callable[[jax.Array], jax.Array]) -> pl.BlockSpec:
    """Return the BlockSpec of `size` columns in the last `count` frames of `array`, starting at column `size * place(step)`."""
    last = array.shape[0] // count - 1
    return pl.BlockSpec((count, size, *array.shape[2:]), lambda part, step: (last, place(step), 0, 0))


def _estimate_cost(plan: TilePlan, columns: int, weight: tuple[int, ...], *, is_normalised: bool) -> pl.CostEstimate:
    """Estimate the cost of computing `columns` columns. libtpu's schedules for v6e take 1.1 times the cycles of these products,
    plus 3 cycles for each 1,024 normalised elements (docs/lab/tpu-kernels.md).
    """
    blocks, depth, width = weight[0], *(math.ceil(size / MATRIX_UNIT) * MATRIX_UNIT for size in weight[1:])
    pixels, elements = plan.count * columns * plan.rows, plan.count * columns * plan.output_rows * blocks * plan.width
    read = blocks * (plan.earlier + plan.count) * columns // plan.factor * plan.rows * plan.channels
    read = read * (plan.columns + 2) // plan.columns
    return pl.CostEstimate(
        flops=2 * blocks * pixels * depth * width,
        bytes_accessed=2 * (math.prod(weight) + read + plan.outputs * elements),
        transcendentals=elements if is_normalised else 0,
    )


def _weight_for_doubled_rows(weight: jax.Array) -> jax.Array:
    """Convert a result of `arrange_weight` [B, K, 3 N] for frames whose rows are doubled, [B, K, 4 N].

    If each row is repeated, the filter's three rows see only two different rows. For the upper copy, the first filter row sees
    the row above, and the other two see the row itself. For the lower copy, the first two filter rows see the row itself, and the
    last sees the row below. The weights of filter rows that see the same row are added.
    """
    first, middle, last = jnp.split(weight, TAPS, axis=-1)
    return jnp.concatenate([first, middle + last, first + middle, last], axis=-1)


def _kernel(*all_refs: jax.Ref, plan: TilePlan, norm_width: int | None, keeps_sum: bool) -> None:
    """Run one grid step: compute some columns of every frame. Without a `norm_width`, there is no norm."""
    refs = list(all_refs)
    sources = [[refs.pop(0) for _ in range(3)] for _ in range(2 if plan.earlier else 1)]
    edges = refs.pop(0), refs.pop(0)
    weight, bias = refs.pop(0), refs.pop(0)
    residuals = [refs.pop(0) for _ in range(plan.residuals)]
    norm = None if norm_width is None else refs.pop(0)
    results, (gathered, *doubled) = refs[: plan.outputs], refs[plan.outputs :]
    summed = doubled.pop() if plan.loops_over_taps else None
    _gather(sources, edges, gathered, plan)

    def make_frame(frame: jax.Array | int) -> None:
        products = _compute_products(gathered, weight, summed, frame, plan)
        addends = []
        for ref in residuals:  # for the columns that this grid step computes
            added = ref[frame // (plan.count // ref.shape[0])].astype(jnp.float32)
            times = plan.output_columns // ref.shape[1]
            if times > 1:
                added = jnp.concatenate([added[column // times][None] for column in range(plan.output_columns)])
            addends.append(added)
        total = _add_rows(products, addends, doubled, plan) + bias[...]
        row = jax.lax.broadcasted_iota(jnp.int32, total.shape, 1)
        total = jnp.where(row < plan.factor * plan.num_rows, total, 0.0)
        if keeps_sum:
            results[0][frame] = total.astype(results[0].dtype)
        if norm is not None:
            results[-1][frame] = norm_and_silu(total, norm[...], norm_width or 0).astype(results[-1].dtype)

    if plan.is_unrolled:  # lets the scheduler overlap the end of one frame with the products of the next frame
        for frame in range(plan.count):
            make_frame(frame)
    else:
        jax.lax.fori_loop(0, plan.count, lambda frame, _: make_frame(frame), None)


def _compute_products(
    gathered: jax.Ref, weight: jax.Ref, summed: jax.Ref | None, frame: jax.Array | int, plan: TilePlan
) -> jax.Array:
    """Multiply a frame and its T earlier frames by their weights, and return the sum, [columns * H, parts * N]
    (`TilePlan.row_parts`)."""

    if summed is None:
        # The depth of a product is padded to a multiple of the matrix unit. One product for all T + 1 frames needs least padding.
        inputs = jnp.concatenate([gathered[frame + tap].reshape(-1, plan.depth) for tap in range(plan.earlier + 1)], axis=-1)
        return jnp.dot(inputs, weight[0], preferred_element_type=jnp.float32)

    def add_tap(tap: jax.Array, _: None) -> None:
        inputs, part = gathered[frame + tap].reshape(-1, plan.depth), weight[0, pl.ds(tap * plan.depth, plan.depth)]
        summed[...] = jnp.where(tap == 0, 0.0, summed[...]) + jnp.dot(inputs, part, preferred_element_type=jnp.float32)

    jax.lax.fori_loop(0, plan.earlier + 1, add_tap, None)
    return summed[...]


def _gather(sources: list[list[jax.Ref]], edges: tuple[jax.Ref, jax.Ref], gathered: jax.Ref, plan: TilePlan) -> None:
    """Fill `gathered`: join the channels of the three input columns under the filter, for each frame and column of the result."""
    is_first, is_last = pl.program_id(1) == 0, pl.program_id(1) == pl.num_programs(1) - 1
    places = [0, plan.earlier, plan.earlier + plan.count] if plan.earlier else [0, plan.count]
    for (left, middle, right), start, end in zip(sources, places[:-1], places[1:], strict=True):
        frames = slice(start, end)
        left = jnp.where(is_first, edges[0][frames], left[...])
        right = jnp.where(is_last, edges[1][frames], right[...])
        for column in range(plan.factor):
            for tap in range(TAPS):
                shift, lanes = (column + tap - 1) // plan.factor, _block_slice(tap, plan.channels)
                if shift == 0:
                    gathered[frames, :, column, :, lanes] = middle[...]
                    continue
                inner, outer = (slice(1, None), slice(0, 1)) if shift < 0 else (slice(0, -1), slice(plan.columns - 1, None))
                gathered[frames, outer, column, :, lanes] = left if shift < 0 else right
                if plan.columns > 1:
                    gathered[frames, inner, column, :, lanes] = middle[:, :-1] if shift < 0 else middle[:, 1:]


def _block_slice(place: int, size: int) -> slice:
    return slice(place * size, (place + 1) * size)


def _add_rows(products: jax.Array, added: list[jax.Array], doubled: list[jax.Ref], plan: TilePlan) -> jax.Array:
    """Add the parts of `products` and the residuals: [columns * H, 3 N] to [columns, H, N]. The first third of the channels
    belongs to the result one row below, and the last third to the result one row above.

    If rows are doubled, there are four parts (`_weight_for_doubled_rows`), and the result is [columns, output rows, N]. The
    buffers `doubled` interleave the upper and lower copies of the rows, one buffer for each 128 channels.
    """
    from_above, *own, from_below = (products[:, _block_slice(part, plan.width)] for part in range(plan.row_parts))
    if not doubled:
        total = _roll_rows(from_above, 1, plan) + own[0] + _roll_rows(from_below, -1, plan)
        return sum(added, total.reshape(plan.output_columns, plan.rows, plan.width))
    upper, lower = own
    upper += _roll_rows(from_above, 1, plan)
    lower += _roll_rows(from_below, -1, plan)
    if added:
        upper, lower = (part + more.reshape(part.shape) for part, more in zip((upper, lower), added, strict=True))
    for part, ref in enumerate(doubled):  # a strided store writes 128 lanes at a time
        ref[pl.ds(0, products.shape[0], 2)] = upper[:, _block_slice(part, LANES)]
        ref[pl.ds(1, products.shape[0], 2)] = lower[:, _block_slice(part, LANES)]
    both = jnp.concatenate([ref[...] for ref in doubled], axis=-1).reshape(plan.output_columns, 2 * plan.rows, plan.width)
    return both[:, : plan.output_rows]


def _roll_rows(rows: jax.Array, by: int, plan: TilePlan) -> jax.Array:
    """Move the rows of each column down (`by` = 1) or up (`by` = -1) in [columns * H, N].

    The empty row at the start or end becomes zero. With `repeats_rows`, it keeps its old value.
    """
    moved = pltpu.roll(rows, by % rows.shape[0], 0).reshape(plan.output_columns, plan.rows, plan.width)
    incoming = 0 if by > 0 else plan.num_rows - 1 if plan.repeats_rows else plan.rows - 1
    entering = rows.reshape(moved.shape) if plan.repeats_rows else 0.0
    return jnp.where(jax.lax.broadcasted_iota(jnp.int32, moved.shape, 1) == incoming, entering, moved).reshape(rows.shape)
