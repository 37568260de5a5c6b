"""Scaled dot-product attention on B S H D arrays."""

from kernels.attention.api import attention

__all__ = ["attention"]
