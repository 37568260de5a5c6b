"""One block of Wan's transformers in its parts, with the arithmetic of diffusers' `WanTransformerBlock`.

On TPUs each norm is one pass. A block is diffusers' module, whose attention is our processor's; `modulation` [1, S or 1, 6, D] is
the step's, float32.
"""

import torch

from backend.models.common.flat_attention import Positions
from backend.models.common.token_norm import normed_in_one_pass, serves
from backend.models.wan.attention import TextKeys
from backend.runtime.mesh import Layout


def run_block(
    block, hidden: torch.Tensor, text: TextKeys, modulation: torch.Tensor, positions: Positions, *, layout: Layout
) -> torch.Tensor:
    """The tokens [B, S, D] after the whole block."""
    attended = attend(block, hidden, text, modulation, positions, layout=layout)
    return feed_forward(block, attended, modulation, layout=layout)


def attend(
    block, hidden: torch.Tensor, text: TextKeys, modulation: torch.Tensor, positions: Positions, *, layout: Layout
) -> torch.Tensor:
    """The tokens after self-attention and cross-attention."""
    shift, scale, gate = _split_modulation(block, modulation)[:3]
    normed = _apply_norm(layout, block.norm1, hidden, scale, shift)
    hidden = (hidden.float() + block.attn1(normed, None, None, positions) * gate).type_as(hidden)
    normed = _apply_norm(layout, block.norm2, hidden)
    return hidden + block.attn2(normed, text, None, None)


def feed_forward(block, hidden: torch.Tensor, modulation: torch.Tensor, *, layout: Layout) -> torch.Tensor:
    """The tokens after the rest of the block."""
    shift, scale, gate = _split_modulation(block, modulation)[3:]
    normed = _apply_norm(layout, block.norm3, hidden, scale, shift)
    return (hidden.float() + block.ffn(normed).float() * gate).type_as(hidden)


def _split_modulation(block, modulation: torch.Tensor) -> list[torch.Tensor]:
    """Shift, scale and gate of attention, then of the feed-forward, each [1, S or 1, D]."""
    whole = block.scale_shift_table.unsqueeze(0) + modulation.float()
    return [part.squeeze(2) for part in whole.chunk(6, dim=2)]


def _apply_norm(
    layout: Layout,
    norm: torch.nn.Module,
    hidden: torch.Tensor,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
) -> torch.Tensor:
    """Layer norm of tokens [B, S, D], then times 1 + scale plus shift. A scale of each token's own is left to XLA."""
    if isinstance(norm, torch.nn.LayerNorm) and serves(layout, hidden, scale):
        return normed_in_one_pass(layout, norm, hidden, scale, shift)
    normal = norm(hidden.float())
    return (normal if scale is None else normal * (1 + scale) + shift).type_as(hidden)
