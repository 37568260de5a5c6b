"""Scaled dot-product attention on B S H D arrays."""

from kernels.attention.api import (
    AttentionOptions,
    TpuOptions,
    attention,
    attention_with_sums,
    of_layer,
    target_platform,
    withdraw,
)
from kernels.attention.block_sizes import BlockSizes, bundles_a_tile, predicted_bundles
from kernels.attention.counts import KeyCounts
from kernels.attention.joined import joined

__all__ = [
    "AttentionOptions",
    "BlockSizes",
    "KeyCounts",
    "TpuOptions",
    "attention",
    "attention_with_sums",
    "bundles_a_tile",
    "joined",
    "of_layer",
    "predicted_bundles",
    "target_platform",
    "withdraw",
]
