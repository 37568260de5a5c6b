"""Sol-Attn: exact attention to all keys of the blocks with high scores, and approximate attention to all other blocks.

A block with approximate attention is replaced by its mean key and mean value, weighted by its number of keys. The method needs no
training. Source: "Sol-Attn" (arXiv:2607.24027), as NVlabs/Sana runs it (techniques/sparse_backends/sol_attn). The published
kernels have blocks of 64 queries. The default here is 128, because a TPU needs longer query blocks to use its matrix unit.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from kernels.attention.block_sparse import BlockSparseOptions, KeyBlocks, Summaries, block_sparse_attention
from kernels.attention.key_selection import block_means, largest
from kernels.attention.sla import SparseHeads
from kernels.qkv import LOG2_E

BLOCK_Q, BLOCK_KV = 128, 64
SMALLEST_VARIANCE = 1e-6  # added to the variance of the scores, as in the published code
MEAN_DENSITY, MOST_DENSITY = 2.25, 4.0
"""The expected mean length of the lists of exact blocks, and the space in a list, as multiples of the share of normally
distributed scores above the threshold. The authors' repository measured the mean with tau 1.5: 15 % of the blocks (Wan at
720p)."""


def mean_exact_blocks(tau: float, blocks: int) -> int:
    """Return the expected mean number of exact key blocks, out of `blocks`, per query block, for cost estimates."""
    return min(blocks, math.ceil(MEAN_DENSITY * _normal_share(tau) * blocks))


def most_exact_blocks(tau: float, blocks: int, block_q: int = BLOCK_Q, block_kv: int = BLOCK_KV) -> int:
    """Return the default for the largest number of exact key blocks per query block. It leaves space for the key blocks of the
    query block's own tokens, and for one neighbour on each side.
    """
    return min(blocks, math.ceil(MOST_DENSITY * _normal_share(tau) * blocks) + 2 + math.ceil(block_q / block_kv))


def _normal_share(tau: float) -> float:
    """Return the share of normally distributed scores that are more than `tau` standard deviations above their mean."""
    return math.erfc(tau / math.sqrt(2)) / 2


def sol_attention(
    heads: SparseHeads,
    tau: float,
    block_q: int = BLOCK_Q,
    block_kv: int = BLOCK_KV,
    first_query: jax.Array | int = 0,
    space: int | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute Sol-Attn.

    Args:
        tau: a key block is exact if its score is more than `tau` standard deviations above the query block's mean score.
        first_query: the index of the first query's token, a multiple of `block_q`.
        space: the largest number of exact key blocks per query block, by default `most_exact_blocks`. If more blocks qualify,
            only the blocks with the largest scores are exact.

    Returns: the attention [B, S_q, H, D], and two totals over all query blocks, [2] float32. The first is the number of exact
    blocks. The second is the number of blocks that qualified, but exceeded `space`.
    """
    use_pallas, scale = heads.uses_pallas, 1.0 if heads.uses_pallas else LOG2_E * heads.query.shape[-1] ** -0.5
    blocks = -(-heads.num_keys // block_kv)
    query = block_means(heads.query, block_q, heads.num_queries, use_pallas)
    key, value = (block_means(array, block_kv, heads.num_keys, use_pallas)[:, :, :blocks] for array in (heads.key, heads.value))
    scores = scale * jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32)
    # The key blocks that contain tokens of the query block, and their neighbours, are always exact: [query blocks, blocks].
    starts, index = first_query + jnp.arange(query.shape[2])[:, None] * block_q, jnp.arange(blocks)
    is_near = (index >= starts // block_kv - 1) & (index <= (starts + block_q - 1) // block_kv + 1)
    # Estimate the variance of the scores from the variance of each channel of the mean keys ("diag" in the authors' code).
    wide_query, wide_key = query.astype(jnp.float32), key.astype(jnp.float32)
    mean = scale * jnp.einsum("bhqd,bhd->bhq", wide_query, wide_key.mean(2))
    variance = scale**2 * jnp.einsum("bhqd,bhd->bhq", wide_query**2, wide_key.var(2))
    is_exact = (scores > (mean + tau * jnp.sqrt(variance + SMALLEST_VARIANCE))[..., None]) | is_near
    wanted = is_exact.sum(-1, dtype=jnp.int32)
    space = most_exact_blocks(tau, blocks, block_q, block_kv) if space is None else space
    counts = jnp.minimum(wanted, space)
    ranked = jnp.where(is_near, jnp.finfo(jnp.float32).max, scores)
    indices, is_listed = largest(ranked, space, counts, use_pallas=use_pallas, returns_mask=True)
    sizes = np.minimum(heads.num_keys - np.arange(blocks) * block_kv, block_kv)
    assert is_listed is not None, "the mask is requested"
    bias = jnp.where(is_listed, -jnp.inf, jnp.asarray(np.log(sizes), jnp.float32))
    attended = block_sparse_attention(
        heads.query,
        heads.key,
        heads.value,
        KeyBlocks(
            indices=indices,
            counts=counts,
            block_q=block_q,
            block_kv=block_kv,
            mean_count=min(space, mean_exact_blocks(tau, blocks)),
        ),
        BlockSparseOptions(num_keys=heads.num_keys, bounds=heads.bounds, implementation=implementation),
        Summaries(key=key, value=value, bias=bias),
    )
    assert isinstance(attended, jax.Array), "no log-sum-exp is requested"
    is_block = jnp.arange(query.shape[2]) * block_q < heads.num_queries
    totals = [jnp.where(is_block, number, 0).astype(jnp.float32).sum() for number in (counts, wanted - counts)]
    return attended, jnp.stack(totals)
