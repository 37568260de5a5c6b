"""Sparse self-attention of Wan transformers: the plan of a request, and the attention of one chip's heads."""

import functools
from collections.abc import Callable

import jax

from backend.checkpoints.json_files import Config
from backend.errors import ModelError
from backend.models.common.flat_attention import SparsePlan, as_array
from backend.models.wan.spec import SPARSE
from backend.runtime.mesh import TOKEN_ALIGNMENT
from backend.runtime.ulysses import OwnHeads
from kernels.attention import SparseHeads, select_key_blocks, sla_attention

BLOCKS = "sparse_blocks"
"""The entry in a transformer's configuration with the number of queries and keys in a block. Published files lack it."""
SLA_BLOCKS = (128, 64)  # as thu-ml/TurboDiffusion and LightX2V generate videos


def make_sparse_plan(config: Config, keep: float) -> SparsePlan | None:
    """Return the plan of a transformer with this configuration, None for dense attention.

    If several chips share the queries of a head, each of them has a multiple of `TOKEN_ALIGNMENT` tokens. A block of queries must
    not cross from one chip to the next. Raises: ModelError if it would.
    """
    method = config.get(SPARSE)
    if method is None:
        return None
    block_q, block_kv = config.get(BLOCKS, SLA_BLOCKS)
    if TOKEN_ALIGNMENT % block_q:
        raise ModelError(
            f"The transformer's config.json says {BLOCKS}=[{block_q}, {block_kv}],",
            f"but the number of queries in a block must divide {TOKEN_ALIGNMENT}",
            "use other blocks, or remove the entry",
        )
    return SparsePlan(method=method, keep=keep, block_q=block_q, block_kv=block_kv)


def sparse_attention(
    attn, plan: SparsePlan, num_tokens: int, head_width: int
) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
    """Return the attention of one chip's heads, and the layer's weights that all chips share.

    Both are arguments of `backend.runtime.ulysses.sparse_self_attention`. `attn` is the layer's module. A head has `head_width`
    channels. `num_tokens` is the number of tokens without padding.
    """
    shared = ()
    if plan.method == "sla":
        shared = as_array(attn.proj_l.weight), as_array(attn.proj_l.bias)
    return functools.partial(_attend_sla, plan=plan, num_tokens=num_tokens, head_width=head_width), shared


def _attend_sla(
    own: OwnHeads, first_query: jax.Array | int, *projection: jax.Array, plan: SparsePlan, num_tokens: int, head_width: int
) -> jax.Array:
    """Compute SLA of one chip's heads, [B, tokens, W]. Without `projection`, only the listed key blocks count."""
    query, key, value = (array.reshape(*array.shape[:2], -1, head_width) for array in (own.query, own.key, own.value))
    heads = SparseHeads(
        query=query,
        key=key,
        value=value,
        num_keys=num_tokens,
        num_queries=num_tokens - first_query,
        bounds=own.bounds,
        mean=None if own.mean is None else own.mean.reshape(own.mean.shape[0], 1, -1, head_width),
    )
    blocks = select_key_blocks(heads, plan.keep, plan.block_q, plan.block_kv)
    attended = sla_attention(heads, blocks, (projection[0], projection[1]) if projection else None)
    return attended.reshape(own.query.shape)
