"""The norm of a block's tokens with the step's modulation, in the TPU's pass where that serves."""

import torch

from backend.models.common.flat_attention import as_array
from backend.runtime.mesh import Layout
from backend.runtime.token_norm import normalise_tokens
from backend.runtime.torch_modules import torchax


def serves(layout: Layout, hidden: torch.Tensor, scale: torch.Tensor | None = None) -> bool:
    """Whether the pass norms these tokens [B, S, D]: one scale [1, 1, D] for all of them, on chips that use the passes."""
    is_shared = scale is None or scale.shape[:2] == (1, 1)
    return is_shared and layout.uses_tpu_passes(as_array(hidden).dtype)


def normed_in_one_pass(
    layout: Layout,
    norm: torch.nn.LayerNorm,
    hidden: torch.Tensor,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
) -> torch.Tensor:
    """Layer norm of tokens [B, S, D] times 1 + scale plus shift, or with the norm's own weights; in float32, rounded once."""
    vectors = (norm.weight, norm.bias) if scale is None else (1 + scale.float(), shift)
    arrays = (as_array(vector).reshape(-1) for vector in vectors)
    return torchax().interop.torch_view(normalise_tokens(layout, as_array(hidden), *arrays, eps=norm.eps))
