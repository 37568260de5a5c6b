"""Scaled dot-product attention on arrays [B, S, H, D]: B samples, S tokens, H heads of D channels."""

from kernels.attention.api import (
    IMPLEMENTATIONS,
    AttentionOptions,
    Call,
    Implementation,
    TpuOptions,
    attention,
    attention_with_lse,
    disable_implementation,
    select_layer,
    target_platform,
)
from kernels.attention.block_sizes import BlockSizes, bundles_a_tile, predicted_bundles
from kernels.attention.joined import join_attentions
from kernels.attention.kv_lengths import KvLengths
from kernels.attention.sla import SparseHeads, select_key_blocks, sla_attention
from kernels.attention.sol import sol_attention
from kernels.attention.ssta import ssta_attention
from kernels.attention.vsa import add_gated_tiles, vsa_attention

__all__ = [
    "IMPLEMENTATIONS",
    "AttentionOptions",
    "BlockSizes",
    "Call",
    "Implementation",
    "KvLengths",
    "SparseHeads",
    "TpuOptions",
    "add_gated_tiles",
    "attention",
    "attention_with_lse",
    "bundles_a_tile",
    "join_attentions",
    "select_key_blocks",
    "select_layer",
    "sla_attention",
    "sol_attention",
    "ssta_attention",
    "vsa_attention",
    "predicted_bundles",
    "target_platform",
    "disable_implementation",
]
