"""Sparse self-attention of Wan transformers: the plan of a request, and the attention of one chip's heads."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from backend.checkpoints.json_files import Config
from backend.errors import ModelError
from backend.models.common.flat_attention import Positions, SparsePlan, as_array
from backend.models.common.token_order import Grid, TokenOrder, order_by_tiles
from backend.models.spec import SPARSE
from backend.runtime.mesh import TOKEN_ALIGNMENT
from backend.runtime.ulysses import OwnHeads
from kernels.attention import SparseHeads, select_key_blocks, sla_attention, vsa_attention

BLOCKS = "sparse_blocks"
"""The entry in a transformer's configuration with the number of queries and keys in a block, or with the sides of a tile of VSA.
Published files lack it."""
SLA_BLOCKS = (128, 64)  # as thu-ml/TurboDiffusion and LightX2V generate videos
VSA_TILE = (4, 4, 4)  # as hao-ai-lab/FastVideo trains and generates videos


def make_sparse_plan(config: Config, keep: float) -> SparsePlan | None:
    """Return the plan of a transformer with this configuration, None for dense attention.

    If several chips share the queries of a head, each of them has a multiple of `TOKEN_ALIGNMENT` tokens. A block of queries must
    not cross from one chip to the next. Raises: ModelError if it would, or if the configuration's block sizes are no sizes.
    """
    method = config.get(SPARSE)
    if method is None:
        return None
    usual = VSA_TILE if method == "vsa" else SLA_BLOCKS
    sizes = config.get(BLOCKS, usual)
    if not isinstance(sizes, list | tuple) or len(sizes) != len(usual) or not all(type(one) is int and one > 0 for one in sizes):
        raise ModelError(
            f"The transformer's config.json says {BLOCKS}={str(sizes)[:40]},",
            f"but it must have {len(usual)} positive whole numbers",
            "use other blocks, or remove the entry",
        )
    if method == "vsa":
        return SparsePlan(method=method, keep=keep, block_q=math.prod(sizes), block_kv=math.prod(sizes), tile=tuple(sizes))
    block_q, block_kv = sizes
    if TOKEN_ALIGNMENT % block_q:
        raise ModelError(
            f"The transformer's config.json says {BLOCKS}=[{block_q}, {block_kv}],",
            f"but the number of queries in a block must divide {TOKEN_ALIGNMENT}",
            "use other blocks, or remove the entry",
        )
    return SparsePlan(method=method, keep=keep, block_q=block_q, block_kv=block_kv)


def make_token_order(plan: SparsePlan | None, grid: Grid) -> TokenOrder | None:
    """Return the order of a video's tokens as NumPy arrays, None if they keep their numbering."""
    if plan is None or plan.tile is None:
        return None
    return order_by_tiles(grid, plan.tile)


def sparse_attention(attn, positions: Positions, head_width: int) -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Return the attention of one chip's heads, and the arrays that all chips share.

    Both are arguments of `backend.runtime.ulysses.sparse_self_attention`. `attn` is the layer's module. A head has `head_width`
    channels.
    """
    plan, shared = positions.sparse, ()
    assert plan is not None, "the caller tests for dense attention"
    if plan.method == "vsa":
        assert positions.order is not None and positions.order.counts is not None, "VSA orders tokens by tiles"
        shared = (as_array(positions.order.counts),)
    elif plan.method == "sla":
        shared = as_array(attn.proj_l.weight), as_array(attn.proj_l.bias)
    attend = _attend_vsa if plan.method == "vsa" else _attend_sla
    return functools.partial(attend, plan=plan, num_tokens=positions.num_tokens, head_width=head_width), shared


def _split_heads(own: OwnHeads, num_tokens: int, first_query: jax.Array | int, head_width: int) -> SparseHeads:
    query, key, value = (array.reshape(*array.shape[:2], -1, head_width) for array in (own.query, own.key, own.value))
    return SparseHeads(
        query=query,
        key=key,
        value=value,
        num_keys=num_tokens,
        num_queries=num_tokens - first_query,
        bounds=own.bounds,
        mean=None if own.mean is None else own.mean.reshape(own.mean.shape[0], 1, -1, head_width),
    )


def _attend_sla(
    own: OwnHeads, first_query: jax.Array | int, *projection: jax.Array, plan: SparsePlan, num_tokens: int, head_width: int
) -> jax.Array:
    """Compute SLA of one chip's heads, [B, tokens, W]. Without `projection`, only the listed key blocks count."""
    heads = _split_heads(own, num_tokens, first_query, head_width)
    blocks = select_key_blocks(heads, plan.keep, plan.block_q, plan.block_kv)
    attended = sla_attention(heads, blocks, (projection[0], projection[1]) if projection else None)
    return attended.reshape(own.query.shape)


def _attend_vsa(
    own: OwnHeads, first_query: jax.Array | int, counts: jax.Array, *, plan: SparsePlan, num_tokens: int, head_width: int
) -> tuple[jax.Array, jax.Array]:
    """Compute VSA of one chip's heads: the attention of tokens [B, tokens, W], and of tiles [B, tiles, W]."""
    heads = _split_heads(own, num_tokens, first_query, head_width)
    fine, coarse = vsa_attention(heads, plan.keep, plan.block_kv, counts, first_query // plan.block_q)
    return fine.reshape(own.query.shape), coarse.reshape(*coarse.shape[:2], -1)
