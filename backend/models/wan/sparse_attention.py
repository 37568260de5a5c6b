"""Sparse self-attention of Wan transformers: the plan for a request, and the computation for the heads of one chip."""

import math

import jax
import torch

from backend.checkpoints.json_files import Config
from backend.errors import ModelError, RequestError
from backend.models.common.flat_attention import SparsePlan
from backend.models.spec import SPARSE, SparseAttention
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
    key blocks that each query block sees, for transformers that were trained with sparse attention. The number of queries in a
    block must divide `TOKEN_ALIGNMENT`, so that no block extends over two chips.

    Raises: ModelError for wrong block sizes in `config`. RequestError if `tau` is not 0 and the transformer was trained with
    sparse attention.
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


def attend_own_heads(
    own: OwnHeads, first_query: jax.Array | int, *shared: jax.Array, plan: SparsePlan, num_tokens: int, head_width: int
) -> SparseHeadsResult:
    """Compute the sparse attention `plan` for the heads of one chip.

    `shared` are the numbers of tokens in each tile for VSA, weight and bias of the projection, if any, for SLA.
    """
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
    counts = tiles = None
    if plan.method == "vsa":
        attended, tiles = vsa_attention(heads, plan.keep, plan.block_kv, shared[0], first_query // plan.block_q)
    elif plan.method == "sol":
        attended, counts = sol_attention(heads, plan.tau, plan.block_q, plan.block_kv, first_query)
    else:
        blocks = select_key_blocks(heads, plan.keep, plan.block_q, plan.block_kv)
        attended = sla_attention(heads, blocks, (shared[0], shared[1]) if shared else None)
    attended = attended.reshape(own.query.shape)
    return SparseHeadsResult(
        attended=attended, tiles=None if tiles is None else tiles.reshape(*tiles.shape[:2], -1), counts=counts
    )


def add_sparse_weights(model: torch.nn.Module, method: SparseAttention | None) -> None:
    """Add the weights of the sparse attention `method` to each self-attention of a `WanTransformer3DModel`.

    SLA (arXiv:2509.24006) applies the projection `proj_l` [head width, head width] to each head's linear attention, in float32.
    VSA (arXiv:2505.13389) multiplies its coarse attention by a gate for each token and channel, the result of `to_gate_compress`.
    Other methods have no weights.
    """
    for block in model.blocks:
        attention, width = block.attn1, model.config.attention_head_dim
        if method == "sla":
            attention.proj_l = torch.nn.Linear(width, width)
        elif method == "vsa":
            attention.to_gate_compress = torch.nn.Linear(attention.to_q.in_features, attention.to_q.out_features)
