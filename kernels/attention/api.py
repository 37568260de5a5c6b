"""The one attention function: picks an implementation by shape, or takes the one that it is told."""

from __future__ import annotations

from typing import Literal

import jax

from kernels.attention.blocked import blocked_attention
from kernels.attention.reference import reference_attention

Implementation = Literal["reference", "blocked"]

SMALL_SCORES = 2**22  # scores a head, 16 MiB in float32: below it one product is faster than a loop of blocks
BLOCK_Q = 1024
BLOCK_KV = 512


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    *,
    scale: float | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """softmax(scale * Q K^T + bias) V, [B, S_q, H, D] in the query's dtype.

    `key`, `value` [B, S_kv, H, D]; `bias` broadcasts to [B, H, S_q, S_kv]; `scale` is D ** -0.5 unless given.
    Raises: NotImplementedError where the implementation that was asked for cannot serve the arguments.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    chosen = implementation or _choose(query, key, bias)
    if chosen == "reference":
        return reference_attention(query, key, value, bias, scale=scale)
    if bias is not None:
        raise NotImplementedError("blocked attention takes no bias; use implementation='reference'")
    return blocked_attention(query, key, value, scale=scale, block_q=BLOCK_Q, block_kv=BLOCK_KV)


def _choose(query: jax.Array, key: jax.Array, bias: jax.Array | None) -> Implementation:
    small = query.shape[1] * key.shape[1] <= SMALL_SCORES
    return "reference" if small or bias is not None else "blocked"
