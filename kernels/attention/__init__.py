"""Scaled dot-product attention on B S H D arrays."""

from kernels.attention.api import TpuOptions, attention
from kernels.attention.block_sizes import BlockSizes, predicted_bundles

__all__ = ["BlockSizes", "TpuOptions", "attention", "predicted_bundles"]
