"""Video sparse attention (VSA): attention between tiles, plus attention to all tokens of the tiles with the best scores. The
attention between tiles uses their mean query, key and value, and is multiplied by a trained gate.

Source: "VSA: Faster Video Diffusion with Trainable Sparse Attention" (arXiv:2505.13389), as hao-ai-lab/FastVideo runs it
(fastvideo/attention/backends/video_sparse_attn.py). The tokens are sorted by tiles. A tile at the video's border ends with
padding.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from kernels.attention.block_sparse import BlockSparseOptions, KeyBlocks, block_sparse_attention
from kernels.attention.key_selection import largest
from kernels.attention.sla import SparseHeads


def num_kept_tiles(keep: float, tiles: int) -> int:
    """Return the number of tiles whose tokens a query tile sees: the share `keep` of all tiles, rounded up, at least one."""
    return max(1, min(tiles, math.ceil(round(keep * tiles, 6))))  # `round` removes the floating-point error of the product


def vsa_attention(
    heads: SparseHeads,
    keep: float,
    size: int,
    counts: jax.Array,
    first_tile: jax.Array | int = 0,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the two attentions of VSA.

    Args:
        heads: the queries are whole tiles. The keys are the tokens of all tiles. `num_keys` and `num_queries` are not used.
        keep: the share of all tiles whose tokens a query tile sees.
        size: the number of tokens in a tile, with padding.
        counts: the number of tokens in each tile, without padding, [tiles] int32.
        first_tile: the index in `counts` of the first query tile.

    Returns: the attention to the tokens of the selected tiles [B, S_q, H, D], and the attention between tiles
    [B, query tiles, H, D]. `add_gated_tiles` adds both.
    """
    tiles, query_tiles = counts.shape[0], heads.query.shape[1] // size
    query_counts = jax.lax.dynamic_slice(jnp.pad(counts, (0, query_tiles)), (first_tile,), (query_tiles,))
    query = _tile_means(heads.query, size, query_counts)
    key, value = (_tile_means(array, size, counts) for array in (heads.key, heads.value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    scale = heads.query_factor * heads.query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores * scale, axis=-1).astype(value.dtype)
    coarse = jnp.einsum("bhqk,bkhd->bqhd", weights, value, preferred_element_type=jnp.float32).astype(value.dtype)
    indices, _ = largest(scores, num_kept_tiles(keep, tiles), use_pallas=heads.uses_pallas)
    blocks = KeyBlocks(indices=indices, sizes=counts, block_q=size, block_kv=size)
    options = BlockSparseOptions(num_keys=tiles * size, bounds=heads.bounds, implementation=implementation)
    fine = block_sparse_attention(heads.query, heads.key, heads.value, blocks, options)
    assert isinstance(fine, jax.Array), "no log-sum-exp is requested"
    return fine, coarse


def add_gated_tiles(fine: jax.Array, coarse: jax.Array, gate: jax.Array) -> jax.Array:
    """Add the attention between tiles `coarse` [B, tiles, W], multiplied by each token's `gate` [B, S, W], to the attention to
    tokens `fine` [B, S, W].
    """
    batch, length, width = fine.shape
    gates = gate.reshape(batch, coarse.shape[1], -1, width)
    return fine + (coarse[:, :, None] * gates).reshape(batch, length, width)


def _tile_means(array: jax.Array, size: int, counts: jax.Array) -> jax.Array:
    """Return the mean of each tile's tokens in [B, S, H, D], or 0, as [B, tiles, H, D] in the array's dtype."""
    batch, _, heads, width = array.shape
    # The heads stay in the channel axis, because a TPU pads a separate axis of a few heads to eight.
    flat = array.reshape(batch, -1, heads * width)[:, : counts.shape[0] * size].reshape(batch, -1, size, heads * width)
    is_token = jnp.arange(size)[:, None] < counts[:, None, None]
    sums = jnp.where(is_token, flat.astype(jnp.float32), 0).sum(2)
    return (sums / jnp.maximum(counts, 1)[:, None]).astype(array.dtype).reshape(batch, -1, heads, width)
