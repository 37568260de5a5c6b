"""Two operations to select key blocks for query blocks: compute the mean of each block, and find the largest scores."""

from __future__ import annotations

from typing import Literal, overload

import jax
import jax.numpy as jnp

from kernels.attention import key_selection_tpu


def block_means(array: jax.Array, block: int, num_tokens: jax.Array | int, use_pallas: bool = False) -> jax.Array:
    """Return the mean of each block of `block` tokens of [B, S, H, D], as [B, H, blocks, D] in the array's dtype.

    Tokens from index `num_tokens` on are padding. The means exclude padding. A block of only padding has the mean 0. Sums are
    computed in float32. `use_pallas` selects the TPU kernel.
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
    """Return the indices of the `number` largest scores of each row of [..., N], as [..., number] int32.

    The indices are in ascending order. If scores are equal, the scores with the lowest indices are selected. With `counts` [...]
    int32, each row has its own number of selected scores, at most `number`. Only the first `counts` indices of a row are then
    valid. `use_pallas` selects the TPU kernel. `returns_mask`: also return whether each score is selected, [..., N] bool.
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
