"""Sparse self-attention of Wan transformers: the plan for a request, and the computation for the heads of one chip."""

import functools
import math
from collections.abc import Callable

import jax

from backend.checkpoints.json_files import Config
from backend.errors import ModelError, RequestError
from backend.models.common.flat_attention import Positions, SparsePlan, as_array
from backend.models.common.token_order import Grid, TokenOrder, order_by_curve, order_by_tiles
from backend.models.spec import SPARSE
from backend.runtime.mesh import TOKEN_ALIGNMENT
from backend.runtime.ulysses import OwnHeads, SparseHeadsResult
from kernels.attention import SparseHeads, select_key_blocks, sla_attention, sol_attention, vsa_attention

BLOCKS = "sparse_blocks"
"""The entry in a transformer's configuration with the number of queries and keys in a block, or with the sides of a tile of VSA.
Published files lack it."""
SLA_BLOCKS = (128, 64)  # queries and keys in a block, as in thu-ml/TurboDiffusion and LightX2V
SOL_BLOCKS = (128, 64)  # queries and keys in a block, see `kernels.attention.sol`
VSA_TILE = (4, 4, 4)  # tokens of a tile along time, height and width, as in hao-ai-lab/FastVideo


def make_sparse_plan(config: Config, keep: float, tau: float = 0.0) -> SparsePlan | None:
    """Return the plan of sparse attention for a transformer with the configuration `config`, None for dense attention.

    A transformer that was trained with dense attention uses Sol-Attn if its threshold `tau` is not 0. `keep` is the share of the
    key blocks that each query block sees, for transformers that were trained with sparse attention.

    The number of queries in a block must divide `TOKEN_ALIGNMENT`. If several chips share the queries of a head, each chip has a
    multiple of `TOKEN_ALIGNMENT` tokens, so no block extends over two chips.

    Raises: ModelError if the number of queries in a block does not divide `TOKEN_ALIGNMENT`, or if the block sizes in `config`
    are not positive whole numbers. RequestError if `tau` is not 0 and the transformer was trained with sparse attention.
    """
    method = config.get(SPARSE, "sol" if tau else None)
    if method is None:
        return None
    if tau and method != "sol":
        rule = (
            f"but this model was trained with another sparse attention ({method}), which keeps sparse_keep={keep:g} of the blocks"
        )
        raise RequestError("sparse was given,", rule, "leave it out")
    usual = {"sol": SOL_BLOCKS, "vsa": VSA_TILE}.get(method, SLA_BLOCKS)
    sizes = config.get(BLOCKS, usual)
    if not isinstance(sizes, list | tuple) or len(sizes) != len(usual) or not all(type(one) is int and one > 0 for one in sizes):
        raise ModelError(
            f"The transformer's config.json says {BLOCKS}={str(sizes)[:40]},",
            f"but it must have {len(usual)} positive whole numbers",
            "use other blocks, or remove the entry",
        )
    tile = tuple(sizes) if method == "vsa" else None
    block_q, block_kv = sizes if tile is None else (math.prod(sizes),) * 2
    if TOKEN_ALIGNMENT % block_q:
        raise ModelError(
            f"The transformer's config.json says {BLOCKS}={list(sizes)},",
            f"but the number of queries in a block must divide {TOKEN_ALIGNMENT}",
            "use other blocks, or remove the entry",
        )
    return SparsePlan(method=method, keep=keep, tau=tau, block_q=block_q, block_kv=block_kv, tile=tile)


def make_token_order(plan: SparsePlan | None, grid: Grid) -> TokenOrder | None:
    """Return the order of a video's tokens that the plan needs, as NumPy arrays. None if the tokens keep the video's order."""
    if plan is not None and plan.method == "sol":
        return order_by_curve(grid)
    return None if plan is None or plan.tile is None else order_by_tiles(grid, plan.tile)


def sparse_attention(
    attn, positions: Positions, head_width: int
) -> tuple[Callable[..., SparseHeadsResult], tuple[jax.Array, ...]]:
    """Return the arguments `attend` and `shared` of `backend.runtime.ulysses.sparse_self_attention`.

    `attend` computes the attention for the heads of one chip. `shared` are arrays that all chips read. `attn` is diffusers'
    attention module. A head has `head_width` channels.
    """
    plan, shared = positions.sparse, ()
    assert plan is not None, "the caller tests for dense attention"
    if plan.method == "vsa":
        assert positions.order is not None and positions.order.counts is not None, "VSA orders tokens by tiles"
        shared = (as_array(positions.order.counts),)
    elif plan.method == "sla":
        shared = as_array(attn.proj_l.weight), as_array(attn.proj_l.bias)
    attend = {"vsa": _attend_vsa, "sol": _attend_sol}.get(plan.method, _attend_sla)
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
) -> SparseHeadsResult:
    """Compute SLA, a sparse attention, for the heads of one chip. Without `projection`, leave out SLA's linear attention."""
    heads = _split_heads(own, num_tokens, first_query, head_width)
    blocks = select_key_blocks(heads, plan.keep, plan.block_q, plan.block_kv)
    attended = sla_attention(heads, blocks, (projection[0], projection[1]) if projection else None)
    return SparseHeadsResult(attended=attended.reshape(own.query.shape))


def _attend_vsa(
    own: OwnHeads, first_query: jax.Array | int, counts: jax.Array, *, plan: SparsePlan, num_tokens: int, head_width: int
) -> SparseHeadsResult:
    heads = _split_heads(own, num_tokens, first_query, head_width)
    fine, coarse = vsa_attention(heads, plan.keep, plan.block_kv, counts, first_query // plan.block_q)
    return SparseHeadsResult(attended=fine.reshape(own.query.shape), tiles=coarse.reshape(*coarse.shape[:2], -1))


def _attend_sol(
    own: OwnHeads, first_query: jax.Array | int, *, plan: SparsePlan, num_tokens: int, head_width: int
) -> SparseHeadsResult:
    heads = _split_heads(own, num_tokens, first_query, head_width)
    attended, counts = sol_attention(heads, plan.tau, plan.block_q, plan.block_kv, first_query)
    return SparseHeadsResult(attended=attended.reshape(own.query.shape), counts=counts)
