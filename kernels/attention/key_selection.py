"""Selection of the key blocks that a query block sees, by the scores of block means."""

from __future__ import annotations

from typing import Literal, overload

import jax
import jax.numpy as jnp

from kernels.attention import key_selection_tpu


def block_means(array: jax.Array, block: int, num_tokens: jax.Array | int, use_pallas: bool = False) -> jax.Array:
    """Return the means over blocks of tokens [B, S, H, D], as [B, H, blocks, D] in the array's dtype.

    Tokens from `num_tokens` on are padding, which the means exclude. The mean of a block without other tokens is 0. Sums are in
    float32. `use_pallas` selects a pass for TPUs.
    """
    if use_pallas:
        return key_selection_tpu.block_means(array, block, num_tokens)
    batch, length, heads, width = array.shape
    blocks = -(-length // block)
    wide = jnp.where(jnp.arange(length)[:, None, None] < num_tokens, array.astype(jnp.float32), 0)
    wide = jnp.pad(wide, ((0, 0), (0, blocks * block - length), (0, 0), (0, 0)))
    sums = wide.reshape(batch, blocks, block, heads, width).sum(2)
    sizes = jnp.clip(num_tokens - jnp.arange(blocks) * block, 1, block).astype(jnp.float32)
    return jnp.moveaxis(sums / sizes[:, None, None], 1, 2).astype(array.dtype)


@overload
def largest(scores: jax.Array, number: int, counts: jax.Array | None = None, use_pallas: bool = False) -> jax.Array: ...


@overload
def largest(
    scores: jax.Array, number: int, counts: jax.Array | None = None, use_pallas: bool = False, *, returns_mask: Literal[True]
) -> tuple[jax.Array, jax.Array]: ...


def largest(
    scores: jax.Array,
    number: int,
    counts: jax.Array | None = None,
    use_pallas: bool = False,
    *,
    returns_mask: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Return the indices of the `number` largest scores of each row [..., N], in ascending order, [..., number] int32.

    If scores are equal, those with lower indices are listed. With `counts` [...] int32, each row lists only its `counts` largest
    scores, and the other indices have no meaning. `use_pallas` selects a kernel for TPUs. `returns_mask`: also return which
    scores are listed, [..., N] bool.
    """
    if use_pallas:
        return key_selection_tpu.largest(scores, number, counts, returns_mask=returns_mask)
    order = jnp.argsort(scores, axis=-1, stable=True, descending=True)
    best = order[..., :number].astype(jnp.int32)
    if counts is not None:
        best = jnp.where(jnp.arange(number) < counts[..., None], best, scores.shape[-1] - 1)
    best = jnp.sort(best, axis=-1)
    if not returns_mask:
        return best
    ranks = jnp.argsort(order, axis=-1)
    return best, ranks < (number if counts is None else counts[..., None])
