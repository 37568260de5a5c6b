"""Quantize the matrices of layers while they are loaded, for `backend/runtime/quantized_linear.py`.

A matrix NAME of a stack is quantized if the stack also has NAME_scale, which no checkpoint contains.
"""

from collections.abc import Container, Mapping

import jax.numpy as jnp
import torch

from backend.runtime.mesh import Shaped
from backend.runtime.quantized_linear import DTYPES, TORCH_DTYPES
from kernels.token_quantize import LARGEST, SMALLEST_PEAK

_SUFFIX = "_scale"
_ROWS = 256  # rows that are quantized at a time, so that the float32 copies stay small
_TORCH_DTYPES = {DTYPES[format]: dtype for format, dtype in TORCH_DTYPES.items()}


def is_scale(name: str, stack: Container[str]) -> bool:
    """Return whether this tensor of a stack is the scale of a quantized matrix of the same stack."""
    return name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) in stack


def stored_tensors(name: str, tensor: torch.Tensor, stack: Mapping[str, Shaped]) -> dict[str, torch.Tensor]:
    """Return the tensors that a layer stores for a checkpoint's tensor: the tensor itself, or a quantized matrix and its
    scale."""
    scale_name = f"{name}{_SUFFIX}"
    if scale_name not in stack:
        return {name: tensor}
    matrix, scale = quantize_matrix(tensor, stack[name].dtype)
    return {name: matrix, scale_name: scale}


def quantize_matrix(matrix: torch.Tensor, dtype: jnp.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix [out, in]. Return the matrix in `dtype`, and the scale [out] float32 of each row.

    Values are rounded to the nearest, halves to even.
    """
    largest = LARGEST[dtype]
    peak = matrix.abs().amax(1).float().clamp_min(SMALLEST_PEAK)
    factor = torch.full_like(peak, largest).div(peak)[:, None]  # `largest / peak` would round the reciprocal first
    quantized = torch.empty(matrix.shape, dtype=_TORCH_DTYPES[dtype])
    for start in range(0, len(matrix), _ROWS):
        rows = slice(start, start + _ROWS)
        scaled = (matrix[rows].float() * factor[rows]).clamp(-largest, largest)
        quantized[rows] = (scaled.round() if dtype == jnp.int8 else scaled).to(quantized.dtype)
    return quantized, peak / largest
