"""Scaled dot-product attention on B S H D arrays."""

from kernels.attention.api import TpuOptions, attention, target_platform
from kernels.attention.block_sizes import BlockSizes, bundles_a_tile, predicted_bundles

__all__ = ["BlockSizes", "TpuOptions", "attention", "bundles_a_tile", "predicted_bundles", "target_platform"]
