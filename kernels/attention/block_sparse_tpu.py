"""The TPU kernel of block-sparse attention: bfloat16 in and out, float32 sums.

All keys and values of one head stay in the vector memory while the kernel runs over the query blocks of the head. Query blocks
are too short to stay in the matrix unit, as in the dense kernel (`pallas_tpu`). Therefore scores are [queries, keys]. As in the
dense kernel, heads with provably small scores use the constant form, the other heads the online softmax.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.attention.pallas_tpu import LANES, LOWEST, bounds_are_safe, order_heads
from kernels.qkv import LOG2_E, HeadBounds

QUERY_BLOCKS = 8  # query blocks in a grid step; the scalar memory contains their lists
# Keys in one matrix product: the width of the matrix unit, or twice the width for query blocks of at most `SHORT_BLOCK` queries.
# For so few queries, loading the keys into the matrix unit takes longer than the product.
PRODUCT_KEYS, SHORT_PRODUCT_KEYS, SHORT_BLOCK = 256, 512, 64
LONGEST_UNROLLED = 192  # list entries; longer lists, and lists with counts, run in a loop of `LOOPED` entries per iteration
LOOPED = 64
SIZE_BITS = 10  # low bits of a list entry, for the number of visible keys; the other bits are the block's index
RESERVED_BYTES = 12 * 2**20  # vector memory for queries, results, lists and summaries

Summary = tuple[jax.Array, jax.Array, jax.Array]
"""Key and value of the summaries, [B, H, N, D], and their bias to base 2, [B, H, query blocks, N] float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseProblem:
    """The properties of a call that are known when the kernel is traced. `block_q` and `block_kv` are the queries and keys in a
    block, `num_keys` the keys without padding. `mean_count` is the expected mean number of used entries in a list, None if all
    are used.
    """

    block_q: int
    block_kv: int
    num_keys: int
    return_lse: bool = False
    mean_count: int | None = None


def find_unsupported(query: jax.Array, key: jax.Array, block_q: int, block_kv: int, vmem_limit_bytes: int) -> str | None:
    """Return an error message if the kernel does not support these types, shapes and block sizes, otherwise None."""
    types = {array.dtype.name for array in (query, key)}
    if types != {"bfloat16"}:
        return f"the block-sparse TPU kernel takes bfloat16, not {', '.join(sorted(types))}; cast, or use 'gathered'"
    if query.shape[-1] != LANES:
        return f"the block-sparse TPU kernel needs a head_dim of {LANES}, not {query.shape[-1]}; use 'gathered'"
    if block_kv != 64 and block_kv % LANES or block_q % 16:
        return (
            f"the block-sparse TPU kernel needs key blocks of 64 or in steps of {LANES}, and query blocks in steps of 16, not "
            f"{block_kv} and {block_q}; use 'gathered'"
        )
    if block_kv >> SIZE_BITS:
        return f"the block-sparse TPU kernel takes at most {(1 << SIZE_BITS) - 1} keys in a block, not {block_kv}; use 'gathered'"
    needed = 2 * math.ceil(key.shape[1] / block_kv) * block_kv * LANES * 2  # bfloat16
    if needed > vmem_limit_bytes - RESERVED_BYTES:
        return (
            f"{key.shape[1]:,} keys and values of a head take {needed / 2**20:.0f} MiB of the vector memory, and "
            f"{(vmem_limit_bytes - RESERVED_BYTES) / 2**20:.0f} MiB are free; use 'gathered'"
        )
    return None


def attend_blocks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    entries: jax.Array,
    counts: jax.Array | None,
    bounds: HeadBounds,
    *,
    problem: SparseProblem,
    summaries: Summary | None,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Attend to the listed key blocks and the summaries.

    Args:
        query: [B, S_q, H, D] bfloat16, multiplied by log2(e) and by the factor of the scores.
        key, value: [B, S_kv, H, D] bfloat16. The last key block must be complete, with padding if needed.
        entries: the lists, [B, H, query blocks, K] int32: index of a key block << `SIZE_BITS` | its number of visible keys.
        counts: the number of used entries in each list, [B, H, query blocks] int32. None if all entries are used.

    Returns: the attention [B, S_q, H, D], and the log-sum-exp [B, S_q, H] float32 (None without `problem.return_lse`).
    """
    batch, length_q, heads, width = query.shape
    lists, span = _pad_lists(entries, counts, problem)
    arrays = [array.reshape(*array.shape[:2], heads * width) for array in (query, key, value)]
    if summaries is not None:  # the padding of the summaries has the bias -inf, which hides it
        extra = -summaries[0].shape[2] % PRODUCT_KEYS
        padded = [jnp.pad(array, ((0, 0), (0, 0), (0, extra), (0, 0))) for array in summaries[:2]]
        missing = lists.shape[1] - summaries[2].shape[2]
        padded.append(jnp.pad(summaries[2], ((0, 0), (0, 0), (0, missing), (0, extra)), constant_values=-jnp.inf))
        arrays += [array.reshape(-1, *array.shape[2:]) for array in padded]
    run = functools.partial(
        _run_heads,
        lists=lists,
        arrays=arrays,
        heads=heads,
        width=width,
        problem=problem,
        span=span,
        has_counts=counts is not None,
        vmem_limit_bytes=vmem_limit_bytes,
        interpret=interpret,
    )
    safe = bounds_are_safe(bounds, problem.num_keys).reshape(-1)
    unsafe_count = jnp.sum(~safe, dtype=jnp.int32)
    # The grid needs at least one head. If no head is safe, one unsafe head is computed, and `replace_unsafe` replaces its result.
    written = run(order_heads(safe), jnp.maximum(safe.size - unsafe_count, 1), uses_online_softmax=False)

    def replace_unsafe(written: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        online = run(order_heads(~safe), unsafe_count, uses_online_softmax=True)
        kept = safe.reshape(batch, heads)
        flags = [jnp.repeat(kept[:, None], width, axis=2), kept[:, :, None, None]]
        return tuple(jnp.where(*arrays) for arrays in zip(flags, written, online, strict=False))

    written = jax.lax.cond(unsafe_count > 0, replace_unsafe, lambda written: written, written)
    lse = jnp.swapaxes(written[1][:, :, 0], 1, 2) / LOG2_E if problem.return_lse else None
    return written[0].reshape(query.shape), lse


def _pad_lists(entries: jax.Array, counts: jax.Array | None, problem: SparseProblem) -> tuple[jax.Array, int]:
    """Return the lists as [B * H, query blocks, K] int32, padded to whole grid steps and whole loop iterations. Also return how
    many entries the unrolled code covers: the whole list if it is short and has no count, else `LOOPED`.

    The added entries have no visible keys. A list's last element is its count, if given.
    """
    batch, heads, blocks, length = entries.shape
    multiple = LANES // math.gcd(problem.block_kv, LANES)  # the number of keys in a loop iteration is a multiple of 128
    whole = math.ceil(length / multiple) * multiple
    span = LOOPED if counts is not None or whole > LONGEST_UNROLLED else whole
    padding = (0, -blocks % QUERY_BLOCKS), (0, -length % span)
    padded = jnp.pad(entries, ((0, 0), (0, 0), *padding))
    if counts is not None:
        padded = jnp.concatenate([padded, jnp.pad(counts, ((0, 0), (0, 0), padding[0]))[..., None]], axis=3)
    return padded.reshape(batch * heads, blocks + padding[0][1], -1), span


def _run_heads(
    order: jax.Array,
    count: jax.Array,
    *,
    uses_online_softmax: bool,
    lists: jax.Array,
    arrays: Sequence[jax.Array],
    heads: int,
    width: int,
    problem: SparseProblem,
    span: int,
    has_counts: bool,
    vmem_limit_bytes: int,
    interpret: bool | pltpu.InterpretParams,
) -> tuple[jax.Array, ...]:
    """Run the kernel for the first `count` heads in `order`, in which a head has the number sample * H + head. The results of
    other heads are undefined.
    """
    query, is_looped = arrays[0], span < lists.shape[2] - has_counts
    kind = "short_" if problem.block_q <= SHORT_BLOCK else "looped_" if is_looped else ""
    rows = QUERY_BLOCKS * problem.block_q

    resident = 2 * math.ceil(arrays[1].shape[1] / problem.block_kv) * problem.block_kv * LANES * 2  # bytes of keys and values
    buffers = 2 if 2 * resident <= vmem_limit_bytes - RESERVED_BYTES else 1
    length = math.ceil(problem.num_keys / problem.block_kv) * problem.block_kv
    whole = pl.BlockSpec(
        (None, length, width),
        lambda head, step, order: (jax.lax.div(order[head], heads), 0, jax.lax.rem(order[head], heads)),
        pipeline_mode=pl.Buffered(buffers),
    )
    queries = pl.BlockSpec(
        (None, rows, width), lambda head, step, order: (jax.lax.div(order[head], heads), step, jax.lax.rem(order[head], heads))
    )
    own_lists = pl.BlockSpec(
        (None, QUERY_BLOCKS, lists.shape[2]), lambda head, step, order: (order[head], step, 0), memory_space=pltpu.SMEM
    )
    specs = [own_lists, queries, whole, whole]
    if len(arrays) > 3:
        number = arrays[3].shape[1]
        summary = pl.BlockSpec((None, number, width), lambda head, step, order: (order[head], 0, 0))
        bias = pl.BlockSpec((None, QUERY_BLOCKS, number), lambda head, step, order: (order[head], step, 0))
        specs += [summary, summary, bias]
    shapes, outputs = [jax.ShapeDtypeStruct(query.shape, query.dtype)], [queries]
    if problem.return_lse:
        shapes.append(jax.ShapeDtypeStruct((query.shape[0], heads, 1, query.shape[1]), jnp.float32))
        outputs.append(
            pl.BlockSpec(
                (None, None, 1, rows),
                lambda head, step, order: (jax.lax.div(order[head], heads), jax.lax.rem(order[head], heads), 0, step),
            )
        )
    kernel = functools.partial(
        _kernel,
        problem=problem,
        span=span,
        has_counts=has_counts,
        uses_online_softmax=uses_online_softmax,
        has_summaries=len(arrays) > 3,
    )
    written = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(count, pl.cdiv(query.shape[1], rows)), in_specs=specs, out_specs=outputs
        ),
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
        cost_estimate=_estimate_cost(lists, arrays, problem, has_counts),
        name=f"block_sparse_{kind}{'online' if uses_online_softmax else 'constant'}",
    )(order, lists, *arrays)
    return tuple(written)


def _estimate_cost(lists: jax.Array, arrays: Sequence[jax.Array], problem: SparseProblem, has_counts: bool) -> pl.CostEstimate:
    """Estimate the work for all heads. The expected mean count is used, plus half a loop iteration for rounding up."""
    heads, blocks, entries = lists.shape[0], lists.shape[1], lists.shape[2] - has_counts
    if problem.mean_count is not None:
        entries = min(entries, problem.mean_count + LOOPED // 2)
    keys = entries * problem.block_kv + (arrays[3].shape[1] if len(arrays) > 3 else 0)
    scores = heads * blocks * problem.block_q * keys
    moved = sum(array.nbytes for array in (lists, *arrays)) + arrays[0].nbytes
    return pl.CostEstimate(flops=4 * LANES * scores, transcendentals=scores, bytes_accessed=moved)


def _kernel(
    order_ref: jax.Ref,
    list_ref: jax.Ref,
    query_ref: jax.Ref,
    key_ref: jax.Ref,
    value_ref: jax.Ref,
    *refs: jax.Ref,
    problem: SparseProblem,
    span: int,
    has_counts: bool,
    uses_online_softmax: bool,
    has_summaries: bool,
) -> None:
    """Run one grid step: `QUERY_BLOCKS` query blocks of one head."""
    summary_refs, output_refs = (refs[:3], refs[3:]) if has_summaries else ((), refs)
    block_q, length = problem.block_q, list_ref.shape[1] - has_counts

    def attend_block(block: jax.Array, _: None) -> None:
        rows = pl.ds(pl.multiple_of(block * block_q, block_q), block_q)
        query = query_ref[rows]
        empty = (jnp.zeros((block_q, LANES), jnp.float32),) * 2
        state = (*empty, jnp.full((block_q, 1), LOWEST, jnp.float32)) if uses_online_softmax else empty
        products = functools.partial(_list_products, list_ref, key_ref, value_ref, block, span=span, problem=problem)
        if span == length:
            state = _attend_products(query, products(0), state)
        else:
            steps = pl.cdiv(list_ref[block, length], span) if has_counts else length // span
            state = jax.lax.fori_loop(0, steps, lambda step, state: _attend_products(query, products(step * span), state), state)
        if has_summaries:
            state = _attend_products(query, _summary_products(*summary_refs, block), state)
        total = state[1].sum(axis=1, keepdims=True)
        output_refs[0][rows] = (state[0] * jnp.where(total > 0, 1 / total, 0)).astype(output_refs[0].dtype)
        if problem.return_lse:
            lse = jnp.log2(total) + (state[2] if uses_online_softmax else 0)
            output_refs[1][:, rows] = jnp.swapaxes(jnp.broadcast_to(lse, (block_q, LANES)), 0, 1)[:1]

    jax.lax.fori_loop(0, QUERY_BLOCKS, attend_block, None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Product:
    """N keys, whose scores one matrix product computes, and their values [N, D]. `mask` masks or biases scores [queries, N]."""

    read_keys: Callable[[], jax.Array]
    read_values: Callable[[], jax.Array]
    mask: Callable[[jax.Array], jax.Array]


def _list_products(
    list_ref: jax.Ref,
    key_ref: jax.Ref,
    value_ref: jax.Ref,
    block: jax.Array,
    first: jax.Array | int,
    span: int,
    problem: SparseProblem,
) -> list[_Product]:
    """Return the `_Product`s of `span` list entries, from index `first` on, for the query block with index `block`."""
    size = problem.block_kv
    joined = max(1, (SHORT_PRODUCT_KEYS if problem.block_q <= SHORT_BLOCK else PRODUCT_KEYS) // size)

    def read(ref: jax.Ref, first: jax.Array | int, number: int) -> jax.Array:
        starts = [(list_ref[block, first + place] >> SIZE_BITS) * size for place in range(number)]
        return jnp.concatenate([ref[pl.ds(pl.multiple_of(start, size), size)] for start in starts])

    def mask(first: jax.Array | int, number: int, scores: jax.Array) -> jax.Array:
        index = jax.lax.broadcasted_iota(jnp.int32, (1, number * size), 1)
        visible = jnp.zeros((1, number * size), jnp.int32)
        for place in range(number):  # mark the visible keys of each block
            end = place * size + (list_ref[block, first + place] & (1 << SIZE_BITS) - 1)
            visible = jnp.where((index >= place * size) & (index < end), 1, visible)
        return jnp.where(visible > 0, scores, -jnp.inf)

    return [
        _Product(
            read_keys=functools.partial(read, key_ref, place, number),
            read_values=functools.partial(read, value_ref, place, number),
            mask=functools.partial(mask, place, number),
        )
        for place, number in ((first + start, min(joined, span - start)) for start in range(0, span, joined))
    ]


def _summary_products(key_ref: jax.Ref, value_ref: jax.Ref, bias_ref: jax.Ref, block: jax.Array) -> list[_Product]:
    parts = [slice(start, start + PRODUCT_KEYS) for start in range(0, key_ref.shape[0], PRODUCT_KEYS)]
    return [
        _Product(
            read_keys=lambda part=part: key_ref[part],
            read_values=lambda part=part: value_ref[part],
            mask=lambda scores, part=part: scores + bias_ref[pl.ds(block, 1), part],
        )
        for part in parts
    ]


def _attend_products(query: jax.Array, products: list[_Product], state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Attend to the keys of `products`, and return the new state. The state is the sum of weighted values [queries, D], the sum
    of weights, as 128 partial sums [queries, 128], and in the online form the running maximum [queries, 1].

    The loop is a software pipeline, unrolled so that the compiler can overlap the three stages. Iteration i computes the scores
    of product i, the weights of product i - 1, and the weighted values of product i - 2.
    """
    contract_width = (((1,), (1,)), ((), ()))
    scored, weighed = [], []
    for index in range(len(products) + 2):
        if index < len(products):
            product = products[index]
            scores = jax.lax.dot_general(query, product.read_keys(), contract_width, preferred_element_type=jnp.float32)
            scored.append((product, product.mask(scores)))
        if 1 <= index <= len(products):
            product, scores = scored.pop(0)
            attended, total, *maximum = state
            shrink = None  # rescales earlier weighted values to the new maximum
            if maximum:
                highest = jnp.maximum(maximum[0], scores.max(axis=1, keepdims=True))
                weights, shrink = jnp.exp2(scores - highest), jnp.exp2(maximum[0] - highest)
                total, maximum = total * shrink, [highest]
            else:  # the scores cannot overflow
                weights = jnp.exp2(scores)
            # Only whole registers are added here. The kernel adds the 128 lanes once, after the last product.
            registers = [weights[:, start : start + LANES] for start in range(0, weights.shape[1], LANES)]
            state = (attended, total + functools.reduce(jnp.add, registers), *maximum)
            weighed.append((product, weights.astype(jnp.bfloat16), shrink))
        if index >= 2:
            product, weights, shrink = weighed.pop(0)
            added = jnp.dot(weights, product.read_values(), preferred_element_type=jnp.float32)
            state = ((state[0] if shrink is None else state[0] * shrink) + added, *state[1:])
    return state
