"""Joins attentions of the same queries to several lots of keys into the attention to all of these keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Part = tuple[jax.Array, jax.Array]
"""What queries attended to, [B, S, H, D], and their log-sums, [B, S, H] float32."""


def joined(first: Part, second: Part) -> jax.Array:
    """The attention [B, S, H, D] to the keys of both: the mean of the two by the sums of their weights.

    Each log-sum is log of the sum of exp(score) over a lot's keys, as `attention` gives it; -inf stands for no keys at all, but
    not in both. Source: FlashAttention (Dao et al., 2022, section 3.1), where blocks of keys are joined the same way.
    """
    (attended, log_sums), (others, others_log_sums) = first, second
    share = jax.nn.sigmoid(others_log_sums - log_sums)[..., None]
    mixed = attended.astype(jnp.float32) * (1 - share) + others.astype(jnp.float32) * share
    return mixed.astype(attended.dtype)
