"""Norms of tokens that are spread over the chips of a TPU slice. Each chip normalises its own tokens in one pass."""

import functools

import jax
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import TOKENS, Layout
from kernels.token_norm import layer_norm, rms_norm


def normalise_tokens(
    layout: Layout, tokens: jax.Array, scale: jax.Array, shift: jax.Array | None = None, *, eps: float
) -> jax.Array:
    """Apply layer norm to `tokens` [B, S, D] with `scale` and `shift` [D]. Without a `shift`, apply RMS norm with `scale`.

    `layout.uses_tpu_passes` must be true for the tokens' dtype.
    """
    norm = functools.partial(rms_norm if shift is None else layer_norm, eps=eps, use_pallas=True)
    vectors = (scale,) if shift is None else (scale, shift)
    return layout.on_each_chip(norm, (TOKENS, *(P() for _ in vectors)), TOKENS)(tokens, *vectors)
