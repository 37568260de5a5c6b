"""Attention exactly as in the formula, in float32. Tests compare all other implementations with this one."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def reference_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    *,
    scale: float,
    window: tuple[int, int] | None = None,
    kv_lengths: jax.Array | None = None,
    return_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Compute softmax(scale * Q K^T + bias) V, [B, S_q, H, D] in the query's dtype. The scores take B * H * S_q * S_kv * 4 bytes.

    Args:
        bias: added to the scores, broadcasts to [B, H, S_q, S_kv].
        window: (before, after). Query i sees keys i - before to i + after. A query that sees no key yields 0.
        kv_lengths: [B], the number of leading keys that each sample's queries see.
        return_lse: also return the log-sum-exp of each query, [B, S_q, H] float32.
    """
    logits = scale * jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias
    if kv_lengths is not None:
        is_seen = jnp.arange(key.shape[1]) < kv_lengths[:, None]
        logits = jnp.where(is_seen[:, None, None], logits, -jnp.inf)
    if window is None:
        weights = jax.nn.softmax(logits, axis=-1)
    else:
        distance = jnp.arange(key.shape[1]) - jnp.arange(query.shape[1])[:, None]
        weights = jax.nn.softmax(logits, axis=-1, where=(distance >= -window[0]) & (distance <= window[1]))
    attended = jnp.einsum("bhqk,bkhd->bqhd", weights, value.astype(jnp.float32))
    attended = attended.astype(query.dtype)
    return (attended, jnp.moveaxis(jax.nn.logsumexp(logits, axis=-1), 1, 2)) if return_lse else attended
