"""Selective and sliding tile attention (SSTA): a tile of a video sees nearby tiles, the tiles with the best scores, and the
context, such as the text. The context's tokens follow the tokens of the video.

Source: Tencent-Hunyuan/HunyuanVideo-1.5, hyvideo/models/transformers/modules/ssta_attention.py at commit 60783e70, with the
arguments that its transformer uses. As there, padding is not masked: its keys are zero and have the score 0, so that they reduce
the weights of the other keys. The context is also divided into tiles. A query sees all keys of a tile, including padding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from kernels.attention.block_sparse import BlockSparseOptions, KeyBlocks, block_sparse_attention
from kernels.attention.key_selection import block_means, largest
from kernels.attention.sla import SparseHeads
from kernels.tiles import TileSelection

SIMILARITY_SHARE = 0.7
"""The weight of similarity to the query in a tile's score. Similarity to other keys is subtracted with the rest of the weight."""
ROWS = 128  # queries in a block for which the TPU kernel is fastest; larger tiles are divided into such blocks, if possible


def ssta_attention(
    heads: SparseHeads,
    tiles: TileSelection,
    context_tiles: jax.Array,
    first_tile: jax.Array | int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """Compute SSTA of the video's queries, [B, S_q, H, D].

    Args:
        heads: the queries are whole tiles of the video. The first `num_keys` keys are all tiles of the video, then the tiles of
            the context. In the padding of the video's tiles, queries, keys and values must be zero (keys before the mean key is
            subtracted). `num_queries` is not used.
        context_tiles: [B] int32, how many of the context's tiles the queries of each sample see.
        first_tile: the index in the video of the first query tile. Query tiles after the video's last tile have undefined
            results.
        implementation: see `BlockSparseOptions`.
    """
    blocks = select_tiles(heads, tiles, context_tiles, first_tile)
    options = BlockSparseOptions(num_keys=heads.num_keys, bounds=heads.bounds, implementation=implementation)
    attended = block_sparse_attention(heads.query, heads.key, heads.value, blocks, options)
    assert isinstance(attended, jax.Array), "no log-sum-exp is requested"
    return attended


def select_tiles(
    heads: SparseHeads, tiles: TileSelection, context_tiles: jax.Array, first_tile: jax.Array | int = 0
) -> KeyBlocks:
    """Return the tiles of keys that each block of queries sees. The arguments are the arguments of `ssta_attention`.

    A tile can be in the window and also have one of the best scores, so that the number of visible tiles varies.

    A tile's score is 0.7 s - 0.3 r. The similarity s is (1 + c) / 2, with the cosine c of the angle between the tile's mean key
    and the mean query. The redundancy r is the mean of (1 + c) / 2 over all other tiles of keys, with the cosine c between the
    two mean keys. If there is no other tile, r is 0.5. The means include padding, which does not change their direction.
    """
    queries = _mean_directions(heads.query, tiles.size, heads.query.shape[1] // tiles.size, None, heads.uses_pallas)
    keys = _mean_directions(heads.key, tiles.size, tiles.num_tiles, heads.mean, heads.uses_pallas)
    cosines = jnp.einsum("bhqd,bhkd->bhqk", queries, keys, precision="highest")
    others = keys.sum(2, keepdims=True) - keys
    redundancy = (keys * others).sum(3)[:, :, None] / max(tiles.num_tiles - 1, 1)
    scores = SIMILARITY_SHARE * (1 + cosines) / 2 - (1 - SIMILARITY_SHARE) * (1 + redundancy) / 2
    _, is_best = largest(scores, tiles.kept, use_pallas=heads.uses_pallas, returns_mask=True)
    assert is_best is not None, "the mask is requested"
    numbers, (_, height, width) = first_tile + jnp.arange(scores.shape[2]), tiles.grid
    is_near = jnp.ones((len(numbers), tiles.num_tiles), bool)  # whether each tile is in the window around each query tile
    own, all_tiles = numbers[:, None], jnp.arange(tiles.num_tiles)[None]
    for step, length, side in zip((height * width, width, 1), tiles.grid, tiles.window, strict=True):
        start = jnp.clip(own // step % length - side // 2, 0, max(length - side, 0))
        place = all_tiles // step % length
        is_near &= (place >= start) & (place < start + side)
    num_context = heads.num_keys // tiles.size - tiles.num_tiles
    is_seen = is_best | is_near
    is_context = (jnp.arange(num_context) < context_tiles[:, None])[:, None, None]
    is_seen = jnp.concatenate([is_seen, jnp.broadcast_to(is_context, (*is_seen.shape[:3], num_context))], axis=3)
    counts = is_seen.sum(3, dtype=jnp.int32)
    # The `counts` largest numbers of `is_seen` are the visible tiles. The TPU selects faster in bfloat16 than in float32.
    seen, most = is_seen.astype(jnp.bfloat16), tiles.most_seen + num_context
    indices, _ = largest(seen, most, counts, use_pallas=heads.uses_pallas)
    parts = tiles.size // ROWS if tiles.size % ROWS == 0 else 1
    indices, counts = (jnp.repeat(array, parts, axis=2) for array in (indices, counts))
    return KeyBlocks(indices=indices, counts=counts, block_q=tiles.size // parts, block_kv=tiles.size)


def _mean_directions(array: jax.Array, size: int, number: int, mean: jax.Array | None, use_pallas: bool) -> jax.Array:
    """Return the mean of each of the first `number` tiles of [B, S, H, D] as a unit vector, or as 0, [B, H, number, D] float32.
    `mean` [B, 1, H, D] was subtracted from the array, and is added again.
    """
    part = ROWS if size % ROWS == 0 else size  # the TPU kernel needs blocks whose size divides 512
    parts = block_means(array, part, number * size, use_pallas)[:, :, : number * size // part].astype(jnp.float32)
    means = parts.reshape(*parts.shape[:2], number, -1, parts.shape[3]).mean(3)
    if mean is not None:
        means = means + jnp.moveaxis(mean, 1, 2)
    norms = jnp.sqrt(jnp.square(means).sum(3, keepdims=True))
    return means / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny)
