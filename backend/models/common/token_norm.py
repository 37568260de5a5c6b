"""The layer norm of a transformer block with the scale and shift of the step, as one Pallas pass on TPUs."""

import torch

from backend.models.common.flat_attention import as_array
from backend.runtime.mesh import Layout
from backend.runtime.token_norm import normalise_tokens
from backend.runtime.torch_modules import torchax


def can_use_pass(layout: Layout, hidden: torch.Tensor, scale: torch.Tensor | None = None) -> bool:
    """Return whether one Pallas pass can normalise these tokens [B, S, D].

    The layout must use Pallas passes for the tokens' dtype. A `scale`, if given, must be [1, 1, D]: the same for all tokens.
    """
    is_shared = scale is None or scale.shape[:2] == (1, 1)
    return is_shared and layout.uses_tpu_passes(as_array(hidden).dtype)


def normalise_in_one_pass(
    layout: Layout,
    norm: torch.nn.LayerNorm,
    hidden: torch.Tensor,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply layer norm to tokens [B, S, D], then multiply by 1 + `scale` and add `shift`.

    Without a `scale`, multiply by the norm's own weight and add its bias instead. The pass computes in float32 and rounds once.
    """
    vectors = (norm.weight, norm.bias) if scale is None else (1 + scale.float(), shift)
    arrays = (as_array(vector).reshape(-1) for vector in vectors)
    return torchax().interop.torch_view(normalise_tokens(layout, as_array(hidden), *arrays, eps=norm.eps))
