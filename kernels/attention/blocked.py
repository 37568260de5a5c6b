"""Attention in blocks with an online softmax: plain XLA, for any backend. Scores stay in the processor's cache.

The running maximum and sum follow Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), applied block by
block as in FlashAttention (Dao et al., 2022, algorithm 1).
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

# Added to the scores of padding keys, and the initial running maximum. The value is finite, so that a block of only padding
# keys yields zero weight and no NaN.
MASKED = -1e30


def blocked_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    block_q: int,
    block_kv: int,
    window: tuple[int, int] | None = None,
    kv_lengths: jax.Array | None = None,
    return_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Compute softmax(scale * Q K^T) V, [B, S_q, H, D] in the query's dtype, for any lengths.

    One head is computed at a time, with block_q * block_kv * 4 bytes of scores in memory. All blocks have nearly the same size:
    4,680 keys become ten blocks of 472 (with padding), not nine blocks of 512 and a block of 72.

    Args:
        block_q, block_kv: largest number of queries and keys in a block.
        window: (before, after). Query i sees keys i - before to i + after. A query that sees no key yields 0.
        kv_lengths: [B], the number of leading keys that each sample's queries see, 1 or more.
        return_lse: also return the log-sum-exp of each query, [B, S_q, H] float32.
    """
    batch, length_q, heads, width = query.shape
    flat = [jnp.moveaxis(array, 2, 1).reshape(batch * heads, -1, width) for array in (query * scale, key, value)]
    block_q, block_kv = (
        math.ceil(length / math.ceil(length / most) / 8) * 8 for length, most in ((length_q, block_q), (key.shape[1], block_kv))
    )
    one_head = functools.partial(_one_head, block_q=block_q, block_kv=block_kv, window=window)
    if kv_lengths is not None:
        flat.append(jnp.repeat(kv_lengths, heads))
    attended, lse = jax.lax.map(lambda arrays: one_head(*arrays), tuple(flat))
    attended = jnp.moveaxis(attended.reshape(batch, heads, length_q, width), 1, 2).astype(query.dtype)
    return (attended, jnp.moveaxis(lse.reshape(batch, heads, length_q), 1, 2)) if return_lse else attended


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
    """Attend with the queries [S_q, D] of one head to the first `count` of its keys [S_kv, D], by default to all. Return the
    attention [S_q, D] and the log-sum-exp [S_q]."""
    length_q, length_kv = query.shape[0], key.shape[0]
    queries = _split_blocks(query, block_q)
    # The token index of each row of the blocks, [N, block]. Padding has the indices from the number of tokens on.
    query_indices, key_indices = (
        jnp.arange(-(-length // block) * block).reshape(-1, block)
        for length, block in ((length_q, block_q), (length_kv, block_kv))
    )
    # Keys are transposed here, because XLA's CPU product in bfloat16 is slow for a transposed operand
    columns = _split_blocks(key, block_kv).transpose(0, 2, 1)
    seen = length_kv if count is None else count
    kv_blocks = (columns, _split_blocks(value, block_kv), jnp.where(key_indices < seen, 0.0, MASKED), key_indices)
    attended, lse = jax.lax.map(lambda block: _one_query_block(*block, kv_blocks, window), (queries, query_indices))
    return attended.reshape(-1, query.shape[1])[:length_q], lse.reshape(-1)[:length_q]


def _split_blocks(array: jax.Array, block: int) -> jax.Array:
    """Split `array` [S, D] into N blocks [N, block, D], with zeros after the last row."""
    padded = jnp.pad(array, ((0, -array.shape[0] % block), (0, 0)))
    return padded.reshape(-1, block, array.shape[1])


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
