"""Sparse-linear attention (SLA): attention to the most important key blocks, plus linear attention to all keys. Important key
blocks have the mean keys with the largest products with the block's mean query.

Source: "SLA: Beyond Sparsity in Diffusion Transformers via Fine-Tunable Sparse-Linear Attention" (Zhang et al., 2025), as
thu-ml/TurboDiffusion runs it (turbodiffusion/SLA/core.py). LightX2V's sparse models use no linear attention.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from kernels.attention import sla_tpu
from kernels.attention.block_sparse import BlockSparseOptions, KeyBlocks, block_sparse_attention
from kernels.attention.key_selection import block_means, largest
from kernels.attention.pallas_tpu import subtract_mean_key
from kernels.qkv import LOG2_E, HeadBounds

BLOCK_Q, BLOCK_KV = 128, 64  # the sizes that thu-ml/TurboDiffusion uses
SMALLEST_SUM = 1e-5  # added to the denominator of linear attention


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseHeads:
    """The query [B, S_q, H, D], and key and value [B, S_kv, H, D], of some heads, after the norms and the rotary embedding.

    Attributes:
        num_keys: keys from this index on are padding.
        num_queries: queries from this index on are padding. It is an array if the number is known only when the program runs.
        bounds, mean: set only if `kernels.qkv` prepared the arrays for TPUs. The query is then multiplied by log2(e) * D ** -0.5,
            and `mean` [B, 1, H, D] was subtracted from the keys.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    num_keys: int
    num_queries: jax.Array | int
    bounds: HeadBounds | None = None
    mean: jax.Array | None = None

    @property
    def uses_pallas(self) -> bool:
        """True if Pallas passes prepared the arrays. Sparse attention then uses Pallas kernels too."""
        return self.bounds is not None

    @property
    def query_factor(self) -> float:
        """The factor that undoes the multiplication of `query` by log2(e) * D ** -0.5."""
        return 1.0 if self.bounds is None else self.query.shape[-1] ** 0.5 / LOG2_E


def num_kept(keep: float, blocks: int) -> int:
    """Return the number of key blocks that each query block sees: the share `keep` of all blocks, rounded down, at least one."""
    return max(1, min(blocks, int(keep * blocks)))


def select_key_blocks(heads: SparseHeads, keep: float, block_q: int = BLOCK_Q, block_kv: int = BLOCK_KV) -> KeyBlocks:
    """Select for each query block the key blocks whose mean keys have the largest products with the block's mean query.

    Without the mean of all keys, the scores are small, and therefore precise in bfloat16. The selection stays the same.
    """
    use_pallas, key = heads.uses_pallas, heads.key
    if heads.mean is None:
        key = subtract_mean_key(key[:, : heads.num_keys])
    queries = block_means(heads.query, block_q, heads.num_queries, use_pallas)
    keys = block_means(key, block_kv, heads.num_keys, use_pallas)[:, :, : -(-heads.num_keys // block_kv)]
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys, preferred_element_type=jnp.float32).astype(queries.dtype)
    number = num_kept(keep, keys.shape[2])
    return KeyBlocks(indices=largest(scores, number, use_pallas=use_pallas)[0], block_q=block_q, block_kv=block_kv)


def sla_attention(
    heads: SparseHeads, blocks: KeyBlocks, projection: tuple[jax.Array, jax.Array] | None, implementation: str | None = None
) -> jax.Array:
    """Compute the attention to the key blocks in `blocks`, plus the projected linear attention to all keys, [B, S_q, H, D].

    `projection` is (weight [D, D] as [out, in], bias [D]), equal for all heads. Without it, linear attention is left out.
    """
    options = BlockSparseOptions(num_keys=heads.num_keys, bounds=heads.bounds, implementation=implementation)
    attended = block_sparse_attention(heads.query, heads.key, heads.value, blocks, options)
    assert isinstance(attended, jax.Array), "no log-sum-exp is requested"
    if projection is None:
        return attended
    if heads.uses_pallas:
        products = sla_tpu.sum_products(heads.key, heads.value, heads.mean, heads.num_keys)
        return sla_tpu.add_linear(attended, heads.query, products, projection, heads.query_factor, SMALLEST_SUM)
    weight, bias = (array.astype(attended.dtype) for array in projection)
    # Intermediate results are rounded to the query's dtype, as in the authors' bfloat16 code. Sums are in float32.
    dtype = heads.query.dtype
    query = jax.nn.softmax(heads.query.astype(jnp.float32) * heads.query_factor, axis=-1).astype(dtype)
    plain_key = heads.key.astype(jnp.float32) + (0 if heads.mean is None else heads.mean)
    is_key = jnp.arange(heads.key.shape[1])[:, None, None] < heads.num_keys
    key = jnp.where(is_key, jax.nn.softmax(plain_key, axis=-1), 0).astype(dtype)
    products = jnp.einsum("bshd,bshe->bhde", key, heads.value, preferred_element_type=jnp.float32).astype(dtype)
    total = key.astype(jnp.float32).sum(1).astype(dtype)
    weighted = jnp.einsum("bshd,bhde->bshe", query, products, preferred_element_type=jnp.float32)
    norm = jnp.einsum("bshd,bhd->bsh", query, total, preferred_element_type=jnp.float32)
    linear = (weighted / (SMALLEST_SUM + norm[..., None])).astype(dtype)
    return attended + (linear @ weight.T + bias)
