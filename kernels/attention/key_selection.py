"""Two operations to select key blocks for query blocks: compute the mean of each block, and find the largest scores.

Each operation has a TPU kernel.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
ROWS = 512  # tokens in a grid step
LIST_ROWS = 32  # rows in a grid step of `largest`; the scores of so few rows fit into the registers
PREFIX = 256  # `_running_count` divides rows into parts of this length, with one matrix product for each part


def block_means(
    array: jax.Array, block: int, num_tokens: jax.Array | int, use_pallas: bool = False, *, interpret: bool = False
) -> jax.Array:
    """Return the mean of each block of `block` tokens of [B, S, H, D], as [B, H, blocks, D] in the array's dtype.

    Tokens from index `num_tokens` on are padding, which the means exclude. A block of only padding has the mean 0. Sums are
    float32. `use_pallas` selects the TPU kernel, which needs heads of 128 channels.
    """
    batch, length, heads, width = array.shape
    blocks = pl.cdiv(length, block)
    if not use_pallas:
        wide = jnp.where(jnp.arange(length)[:, None, None] < num_tokens, array.astype(jnp.float32), 0)
        wide = jnp.pad(wide, ((0, 0), (0, blocks * block - length), (0, 0), (0, 0)))
        sums = wide.reshape(batch, blocks, block, heads, width).sum(2)
        sizes = jnp.clip(num_tokens - jnp.arange(blocks) * block, 1, block).astype(jnp.float32)
        return jnp.moveaxis(sums / sizes[:, None, None], 1, 2).astype(array.dtype)
    parts, step = pl.cdiv(length, ROWS), ROWS // block
    means = pl.pallas_call(
        functools.partial(_means_kernel, block=block),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, parts),
            in_specs=[pl.BlockSpec((None, ROWS, heads * width), lambda sample, part, count: (sample, part, 0))],
            out_specs=pl.BlockSpec((None, None, step, heads * width), lambda sample, part, count: (sample, part, 0, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((batch, parts, step, heads * width), array.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(flops=array.size, transcendentals=0, bytes_accessed=array.nbytes),
        interpret=interpret,
        name="block_means",
    )(jnp.asarray(num_tokens, jnp.int32).reshape(1), array.reshape(batch, length, heads * width))
    means = means.reshape(batch, -1, heads, width)[:, :blocks]
    return jnp.swapaxes(means, 1, 2)


def _means_kernel(count_ref: jax.Ref, array_ref: jax.Ref, means_ref: jax.Ref, *, block: int) -> None:
    rows, columns = array_ref.shape
    first = pl.program_id(1) * rows
    for start in range(0, columns, LANES):
        part = slice(start, start + LANES)
        index = first + jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 0)
        wide = jnp.where(index < count_ref[0], array_ref[:, part].astype(jnp.float32), 0)
        sums = wide.reshape(rows // block, block, LANES).sum(1)
        begin = first + block * jax.lax.broadcasted_iota(jnp.int32, sums.shape, 0)
        sizes = jnp.clip(count_ref[0] - begin, 1, block).astype(jnp.float32)
        means_ref[:, part] = (sums / sizes).astype(means_ref.dtype)


def largest(
    scores: jax.Array,
    number: int,
    counts: jax.Array | None = None,
    use_pallas: bool = False,
    *,
    returns_mask: bool = False,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Return the indices of the `number` largest scores of each row of [..., N], in ascending order, as [..., number] int32.

    If scores are equal, the scores with the lowest indices are selected. With `counts` [...] int32, each row has its own number
    of selected scores, at most `number`, and only the first `counts` indices of a row are valid. `use_pallas` selects the TPU
    kernel. With `returns_mask`, the second result states whether each score is selected, [..., N] bool.
    """
    if not use_pallas:
        order = jnp.argsort(scores, axis=-1, stable=True, descending=True)
        best = order[..., :number].astype(jnp.int32)
        if counts is not None:
            best = jnp.where(jnp.arange(number) < counts[..., None], best, scores.shape[-1] - 1)
        best = jnp.sort(best, axis=-1)
        return best, jnp.argsort(order, axis=-1) < (number if counts is None else counts[..., None]) if returns_mask else None
    lead, (rows, length) = scores.shape[:-2], scores.shape[-2:]
    bits = 8 * scores.dtype.itemsize
    padded_rows, padded = -rows % LIST_ROWS, -length % PREFIX
    flat = jnp.pad(scores.reshape(-1, rows, length), ((0, 0), (0, padded_rows), (0, padded)), constant_values=-jnp.inf)
    if counts is None:
        wanted = jnp.full((*flat.shape[:2], 1), number, jnp.int32)
    else:
        wanted = jnp.pad(counts.reshape(-1, rows, 1), ((0, 0), (0, padded_rows), (0, 0)))
    width = number + -number % LANES
    triangle = jnp.triu(jnp.ones((PREFIX, PREFIX), jnp.bfloat16))
    shapes = [jax.ShapeDtypeStruct((*flat.shape[:2], width), jnp.int32)]
    specs = [pl.BlockSpec((None, LIST_ROWS, width), lambda head, part: (head, part, 0))]
    if returns_mask:
        shapes.append(jax.ShapeDtypeStruct(flat.shape, jnp.float32))
        specs.append(pl.BlockSpec((None, LIST_ROWS, flat.shape[2]), lambda head, part: (head, part, 0)))
    lists, *masks = pl.pallas_call(
        functools.partial(_largest_kernel, bits=bits, number=number, length=length, has_counts=counts is not None),
        grid=(flat.shape[0], flat.shape[1] // LIST_ROWS),
        in_specs=[
            pl.BlockSpec((None, LIST_ROWS, flat.shape[2]), lambda head, part: (head, part, 0)),
            pl.BlockSpec((None, LIST_ROWS, 1), lambda head, part: (head, part, 0)),
            pl.BlockSpec((PREFIX, PREFIX), lambda head, part: (0, 0)),
        ],
        out_specs=specs,
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=flat.size * (bits + number), transcendentals=0, bytes_accessed=flat.nbytes + 4 * flat.shape[0] * rows * width
        ),
        interpret=interpret,
        name="largest_scores",
    )(flat, wanted, triangle)
    lists = lists[:, :rows, :number].reshape(*lead, rows, number)
    return lists, masks[0][:, :rows, :length].reshape(scores.shape) > 0 if returns_mask else None


def _largest_kernel(
    scores_ref: jax.Ref,
    wanted_ref: jax.Ref,
    triangle_ref: jax.Ref,
    lists_ref: jax.Ref,
    *mask_refs: jax.Ref,
    bits: int,
    number: int,
    length: int,
    has_counts: bool,
) -> None:
    """Select the largest scores of each of `LIST_ROWS` rows.

    Bisection finds each row's threshold, which is the smallest selected score. The kernel marks all larger scores, and the first
    scores that equal the threshold, until the row has enough marks. Then it lists the indices of the marked scores.
    """
    wide = scores_ref[...].astype(jnp.float32) + 0.0
    integers = jax.lax.bitcast_convert_type(wide, jnp.int32)
    ordered = jnp.where(integers < 0, integers ^ 0x7FFFFFFF, integers)
    wanted = wanted_ref[...]
    rows = ordered.shape[0]

    def narrow(step: jax.Array, least: jax.Array) -> jax.Array:
        tried = least + jax.lax.shift_left(jnp.int32(1), jnp.int32(31) - step)
        enough = (ordered >= tried).astype(jnp.float32).sum(1, keepdims=True).astype(jnp.int32) >= wanted
        return jnp.where(enough, tried, least)

    start = jnp.full((rows, 1), -(2**31), jnp.int32)
    threshold = jax.lax.fori_loop(0, bits, narrow, start)
    # A bfloat16 score sets only the upper 16 of 32 bits. So all integers from `threshold` to `last` represent the same score.
    last = threshold | (1 << (32 - bits)) - 1
    is_above, is_equal = ordered > last, (ordered >= threshold) & (ordered <= last)
    room = wanted - is_above.astype(jnp.float32).sum(1, keepdims=True).astype(jnp.int32)
    is_marked = is_above | (is_equal & (_running_count(is_equal, triangle_ref) <= room.astype(jnp.float32)))
    count = _running_count(is_marked, triangle_ref)
    lane = jax.lax.broadcasted_iota(jnp.int32, lists_ref.shape, 1)

    def place(mark: jax.Array, found: jax.Array) -> jax.Array:
        # `mark` is the number of a mark in its row, from 0. Only the positions before this mark have a running count of at most
        # `mark`. So the number of these positions is the index of the mark.
        index = (count <= mark.astype(jnp.float32)).astype(jnp.float32).sum(1, keepdims=True).astype(jnp.int32)
        return jnp.where(lane == mark, jnp.minimum(index, length - 1), found)

    if mask_refs:
        mask_refs[0][...] = is_marked.astype(jnp.float32)
    longest = jnp.max(wanted.astype(jnp.float32)).astype(jnp.int32) if has_counts else number
    lists_ref[...] = jax.lax.fori_loop(0, longest, place, jnp.zeros(lists_ref.shape, jnp.int32))


def _running_count(mask: jax.Array, triangle_ref: jax.Ref) -> jax.Array:
    """Return, for each position of `mask` [rows, N], the number of true values in the row up to and including the position."""
    parts, before = [], jnp.zeros((mask.shape[0], 1), jnp.float32)
    for start in range(0, mask.shape[1], PREFIX):
        marks = mask[:, start : start + PREFIX].astype(jnp.float32)
        parts.append(before + jnp.dot(marks.astype(jnp.bfloat16), triangle_ref[...], preferred_element_type=jnp.float32))
        before = before + marks.sum(1, keepdims=True)
    return jnp.concatenate(parts, axis=1)
