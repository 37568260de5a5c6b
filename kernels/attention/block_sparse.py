"""Block-sparse attention: each block of queries attends to its own list of key blocks.

The lists are arrays, so that a program can compute them on the device. All lists of a call have the same number of entries. A
count for each list can limit how many of its entries are used. The TPU kernel is in `block_sparse_tpu`.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from kernels.attention import api, block_sparse_tpu
from kernels.attention.api import SMALL_SCORES, target_chip, target_platform, vmem_limit
from kernels.attention.pallas_tpu import head_bounds, subtract_mean_key
from kernels.qkv import LOG2_E, HeadBounds

MASKED = -1e30  # lower limit of the maximum score; it is finite, so that a query that sees no key yields 0 and not NaN


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indices", "counts", "sizes"],
    meta_fields=["block_q", "block_kv", "mean_count"],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyBlocks:
    """The key blocks that each query block sees.

    Attributes:
        indices: [B, H, query blocks, K] int32, a list of K different indices of key blocks for each query block.
        counts: [B, H, query blocks] int32, the number of entries that are used, from the start of each list. None: all.
        sizes: [key blocks] int32, the number of keys in each block, before its padding. None: all are full, except the last.
        block_q, block_kv: the number of queries in a query block, and of keys in a full key block.
        mean_count: the expected mean of `counts`, used only to estimate the kernel's cost. None if all entries are used.
    """

    indices: jax.Array
    counts: jax.Array | None = None
    sizes: jax.Array | None = None
    block_q: int
    block_kv: int
    mean_count: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summaries:
    """N additional keys and values, [B, H, N, D]. Each summarises a whole block of keys, for example by the block's mean.

    `bias` [B, H, query blocks, N] float32 is added to the scaled scores. -inf hides a summary from a query block.
    """

    key: jax.Array
    value: jax.Array
    bias: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSparseOptions:
    """Options of `block_sparse_attention`.

    Attributes:
        scale: factor of the scores, default D ** -0.5.
        num_keys: keys from this index on are padding that no query sees. The padding must be finite. None or 0 means no padding.
        bounds: set only if `kernels.qkv` prepared the arrays for TPUs. The query is then already multiplied by
            log2(e) * D ** -0.5, and `scale` is ignored.
        return_lse: also return the log-sum-exp of each query, [B, S_q, H] float32, which `join_attentions` needs.
        implementation: "pallas_tpu", "gathered" or "masked". By default, it is chosen by platform and size.
        interpret: run the TPU kernel in Pallas' interpreter.
    """

    scale: float | None = None
    num_keys: int | None = None
    bounds: HeadBounds | None = None
    return_lse: bool = False
    implementation: str | None = None
    interpret: bool = False


def block_sparse_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    blocks: KeyBlocks,
    options: BlockSparseOptions | None = None,
    summaries: Summaries | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Compute softmax(scale * Q K^T) V over the listed key blocks and the summaries, [B, S_q, H, D] in the query's dtype.

    `query` is [B, S_q, H, D], and `key`, `value` are [B, S_kv, H, D]. A query that sees no key yields 0.

    Raises: NotImplementedError if `options` name the TPU kernel, and the kernel does not support the arguments.
    """
    options = options or BlockSparseOptions()
    scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
    num_keys = options.num_keys or key.shape[1]
    name = options.implementation or _choose(query, key, blocks, options)
    if name == "pallas_tpu":
        return _attend_on_tpu(query, key, value, blocks, dataclasses.replace(options, scale=scale, num_keys=num_keys), summaries)
    if options.bounds is not None:
        scale = 1 / LOG2_E  # the query was multiplied by scale * log2(e) for exp2, but these implementations compute exp
    attend = _masked if name == "masked" else _gathered
    attended, lse = attend(query, key, value, blocks, _sizes(blocks, num_keys), scale, summaries)
    return (attended, lse) if options.return_lse else attended


def _choose(query: jax.Array, key: jax.Array, blocks: KeyBlocks, options: BlockSparseOptions) -> str:
    """Return the name of the fastest implementation for these arguments.

    A process that does not use the dense TPU kernel (`disable_implementation`) does not use the block-sparse TPU kernel either.
    """
    if target_platform() == "tpu" and "pallas_tpu" not in api.disabled:
        limit = vmem_limit(target_chip())
        if block_sparse_tpu.find_unsupported(query, key, blocks.block_q, blocks.block_kv, limit) is None:
            return "pallas_tpu"
    return "masked" if query.shape[1] * key.shape[1] <= SMALL_SCORES else "gathered"


def _sizes(blocks: KeyBlocks, num_keys: int) -> jax.Array:
    """Return the number of keys in each block, without padding, [key blocks] int32."""
    if blocks.sizes is not None:
        return blocks.sizes
    starts = jnp.arange(0, num_keys, blocks.block_kv, dtype=jnp.int32)
    return jnp.minimum(num_keys - starts, blocks.block_kv)


def _list_sizes(blocks: KeyBlocks, sizes: jax.Array) -> jax.Array:
    """Return the number of visible keys in the block of each list entry, [B, H, query blocks, K] int32. 0 for unused entries."""
    listed = sizes[blocks.indices]
    if blocks.counts is None:
        return listed
    return jnp.where(jnp.arange(blocks.indices.shape[-1]) < blocks.counts[..., None], listed, 0)


def _attend_on_tpu(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    blocks: KeyBlocks,
    options: BlockSparseOptions,
    summaries: Summaries | None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Run the TPU kernel. Without bounds, first scale the query and compute the bounds of each head. Also subtract the mean key,
    unless the call has summaries or returns the log-sum-exp.
    """
    limit = vmem_limit(target_chip())
    if (reason := block_sparse_tpu.find_unsupported(query, key, blocks.block_q, blocks.block_kv, limit)) is not None:
        raise NotImplementedError(reason)
    bounds = options.bounds
    if bounds is None:
        assert options.scale is not None, "set by the caller"
        query = (query.astype(jnp.float32) * (options.scale * LOG2_E)).astype(query.dtype)
        if not options.return_lse and summaries is None:
            key = subtract_mean_key(key)
        bounds = head_bounds(query, key, value)
    num_keys = options.num_keys or key.shape[1]
    sizes = _sizes(blocks, num_keys)
    padding = ((0, 0), (0, len(sizes) * blocks.block_kv - key.shape[1]), (0, 0), (0, 0))
    if padding[1][1] > 0:
        key, value = jnp.pad(key, padding), jnp.pad(value, padding)
    visible = _list_sizes(blocks, sizes)
    attended, lse = block_sparse_tpu.attend_blocks(
        query,
        key,
        value,
        blocks.indices << block_sparse_tpu.SIZE_BITS | visible,
        blocks.counts,
        bounds,
        problem=block_sparse_tpu.SparseProblem(
            block_q=blocks.block_q,
            block_kv=blocks.block_kv,
            num_keys=num_keys,
            return_lse=options.return_lse,
            mean_count=blocks.mean_count,
        ),
        summaries=None if summaries is None else (summaries.key, summaries.value, summaries.bias * LOG2_E),
        vmem_limit_bytes=limit,
        interpret=options.interpret,
    )
    return attended if lse is None else (attended, lse)


def _masked(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    blocks: KeyBlocks,
    sizes: jax.Array,
    scale: float,
    summaries: Summaries | None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the scores of all keys, then mask the keys that are not listed. Takes B * H * S_q * S_kv * 4 bytes."""
    length_q, length_kv = query.shape[1], key.shape[1]
    seen = jax.nn.one_hot(blocks.indices, len(sizes), dtype=jnp.int32) * _list_sizes(blocks, sizes)[..., None]
    visible = seen.sum(3)  # the number of visible keys, [B, H, query blocks, key blocks]
    offset = jnp.arange(length_kv) % blocks.block_kv
    place = jnp.minimum(jnp.arange(length_kv) // blocks.block_kv, len(sizes) - 1)
    is_block = jnp.arange(length_kv) < len(sizes) * blocks.block_kv
    visible = jnp.take(visible, place, axis=3) * is_block
    is_seen = jnp.repeat(offset < visible, blocks.block_q, axis=2)[:, :, :length_q]
    scores = scale * jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    scores, values = jnp.where(is_seen, scores, -jnp.inf), jnp.moveaxis(value, 1, 2)
    if summaries is not None:
        bias = jnp.repeat(summaries.bias, blocks.block_q, axis=2)[:, :, :length_q]
        whole = scale * jnp.einsum("bqhd,bhkd->bhqk", query, summaries.key, preferred_element_type=jnp.float32) + bias
        scores, values = jnp.concatenate([scores, whole], axis=3), jnp.concatenate([values, summaries.value], axis=2)
    return _weigh(scores, values, query.dtype)


def _weigh(scores: jax.Array, values: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Return the softmax of scores [B, H, Q, K] times values [B, H, K, D] as [B, Q, H, D], and the log-sum-exp [B, Q, H]."""
    maximum = jnp.maximum(scores.max(-1, keepdims=True), MASKED)
    weights = jnp.exp(scores - maximum)
    total = weights.sum(-1, keepdims=True)
    attended = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(dtype), values, preferred_element_type=jnp.float32)
    attended = attended * jnp.where(total > 0, 1 / total, 0)
    lse = (jnp.log(total) + maximum)[..., 0]
    return jnp.moveaxis(attended, 1, 2).astype(dtype), jnp.moveaxis(lse, 1, 2)


def _gathered(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    blocks: KeyBlocks,
    sizes: jax.Array,
    scale: float,
    summaries: Summaries | None,
) -> tuple[jax.Array, jax.Array]:
    """Loop over the query blocks, and copy their listed key blocks: B * H * K * block_kv keys, and as many values."""
    length_q, width = query.shape[1], query.shape[3]
    count = blocks.indices.shape[2]
    queries = _pad_tokens(query, count * blocks.block_q).reshape(query.shape[0], count, blocks.block_q, *query.shape[2:])
    tiles = [
        jnp.moveaxis(_pad_tokens(array, len(sizes) * blocks.block_kv), 2, 1).reshape(
            array.shape[0], array.shape[2], len(sizes), blocks.block_kv, width
        )
        for array in (key, value)
    ]
    visible = _list_sizes(blocks, sizes)

    def one_block(arguments: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        block, indices, seen, *bias = arguments  # shapes: [B, block_q, H, D], [B, H, K], [B, H, K], [B, H, N]
        keys, values = (
            jnp.take_along_axis(array, indices[..., None, None], axis=2).reshape(*array.shape[:2], -1, width) for array in tiles
        )
        scores = scale * jnp.einsum("bqhd,bhkd->bhqk", block, keys, preferred_element_type=jnp.float32)
        is_seen = (jnp.arange(blocks.block_kv) < seen[..., None]).reshape(*seen.shape[:2], 1, -1)
        scores = jnp.where(is_seen, scores, -jnp.inf)
        if summaries is not None:
            whole = scale * jnp.einsum("bqhd,bhkd->bhqk", block, summaries.key, preferred_element_type=jnp.float32)
            scores = jnp.concatenate([scores, whole + bias[0][:, :, None]], axis=3)
            values = jnp.concatenate([values, summaries.value], axis=2)
        return _weigh(scores, values, query.dtype)

    by_block = [jnp.moveaxis(queries, 1, 0), *(jnp.moveaxis(array, 2, 0) for array in (blocks.indices, visible))]
    if summaries is not None:
        by_block.append(jnp.moveaxis(summaries.bias, 2, 0))
    attended, lse = jax.lax.map(one_block, tuple(by_block))
    attended, lse = (
        jnp.moveaxis(array, 0, 1).reshape(query.shape[0], -1, *array.shape[3:])[:, :length_q] for array in (attended, lse)
    )
    return attended, lse


def _pad_tokens(array: jax.Array, length: int) -> jax.Array:
    """Pad [B, S, ...] with zeros, or cut it, to `length` tokens."""
    missing = length - array.shape[1]
    if missing <= 0:
        return array[:, :length]
    return jnp.pad(array, ((0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)))
