"""Attention in blocks with an online softmax: plain XLA, for any backend, with scores that stay in the cache.

The running maximum and sum follow Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), applied
block by block as in FlashAttention (Dao et al., 2022, algorithm 1).
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite, so that a block without any real key yields zero weight and no NaN


def blocked_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    block_q: int,
    block_kv: int,
    window: tuple[int, int] | None = None,
    counts: jax.Array | None = None,
    return_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(scale * Q K^T) V, [B, S_q, H, D] in the query's dtype; any lengths, the tail keys are masked.

    With `counts` [B], each 1 or more, the queries of a sample see its first keys only, that many. If it `return_lse`, the
    log-sums [B, S_q, H] float32 come too.

    With `window` (before, after) query i sees keys i - before to i + after, and yields 0 if there is none; blocks outside
    the window are computed too.
    One head at a time, at most `block_q` queries against `block_kv` keys: block_q * block_kv * 4 bytes of scores. Blocks are
    shrunk to nearly even sizes: at 4,680 keys, 512 would leave a tenth block of 72.
    """
    batch, length_q, heads, width = query.shape
    flat = [jnp.moveaxis(array, 2, 1).reshape(batch * heads, -1, width) for array in (query * scale, key, value)]
    block_q, block_kv = _even_block(length_q, block_q), _even_block(key.shape[1], block_kv)
    one_head = functools.partial(_one_head, block_q=block_q, block_kv=block_kv, window=window)
    if counts is not None:
        flat.append(jnp.repeat(counts, heads))
    attended, log_sums = jax.lax.map(lambda arrays: one_head(*arrays), tuple(flat))
    attended = jnp.moveaxis(attended.reshape(batch, heads, length_q, width), 1, 2).astype(query.dtype)
    return (attended, jnp.moveaxis(log_sums.reshape(batch, heads, length_q), 1, 2)) if return_lse else attended


def _even_block(length: int, most: int) -> int:
    """The block size, a multiple of 8 up to about `most`, that covers `length` in as many blocks as `most` does."""
    blocks = math.ceil(length / most)
    return math.ceil(length / blocks / 8) * 8


def _one_head(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    count: jax.Array | None = None,
    *,
    block_q: int,
    block_kv: int,
    window: tuple[int, int] | None,
) -> tuple[jax.Array, jax.Array]:
    """[S_q, D] and the log-sums [S_q] from [S_q, D], [S_kv, D], [S_kv, D], of which `count` keys are seen, None for all."""
    length_q, length_kv = query.shape[0], key.shape[0]
    query_blocks = (_split(query, block_q), _indices(length_q, block_q))
    key_indices = _indices(length_kv, block_kv)
    columns = _split(key, block_kv).transpose(0, 2, 1)  # once: XLA's CPU product in bfloat16 is slow with rows for columns
    seen = length_kv if count is None else count
    kv_blocks = (columns, _split(value, block_kv), jnp.where(key_indices < seen, 0.0, MASKED), key_indices)
    attended, log_sums = jax.lax.map(lambda block: _one_query_block(*block, kv_blocks, window), query_blocks)
    return attended.reshape(-1, query.shape[1])[:length_q], log_sums.reshape(-1)[:length_q]


def _split(array: jax.Array, block: int) -> jax.Array:
    """[N, block, D], the end padded with zeros."""
    padded = jnp.pad(array, ((0, -array.shape[0] % block), (0, 0)))
    return padded.reshape(-1, block, array.shape[1])


def _indices(length: int, block: int) -> jax.Array:
    """[N, block] int32: the row number of each row of the blocks; the count continues in the padding."""
    blocks = -(-length // block)
    return jnp.arange(blocks * block).reshape(blocks, block)


def _one_query_block(
    query: jax.Array, query_indices: jax.Array, kv_blocks: tuple[jax.Array, ...], window: tuple[int, int] | None
) -> tuple[jax.Array, jax.Array]:
    rows, width = query.shape
    start = (jnp.full((rows, 1), MASKED), jnp.zeros((rows, 1)), jnp.zeros((rows, width)))

    def accumulate(carry: tuple[jax.Array, ...], block: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], None]:
        maximum, total, attended = carry
        key, value, bias, key_indices = block
        scores = jnp.dot(query, key, preferred_element_type=jnp.float32) + bias
        if window is not None:
            distance = key_indices - query_indices[:, None]
            scores = jnp.where((distance >= -window[0]) & (distance <= window[1]), scores, -jnp.inf)
        new_maximum = jnp.maximum(maximum, scores.max(axis=1, keepdims=True))
        weights = jnp.exp(scores - new_maximum)
        shrink = jnp.exp(maximum - new_maximum)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        products = jnp.dot(weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
        return (new_maximum, total, attended * shrink + products), None

    (maximum, total, attended), _ = jax.lax.scan(accumulate, start, kv_blocks)
    attended = attended / total if window is None else jnp.where(total > 0, attended / total, 0)
    return attended, (maximum + jnp.log(total))[:, 0]
