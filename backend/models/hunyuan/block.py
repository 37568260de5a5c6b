"""One block of HunyuanVideo 1.5's transformer, with the arithmetic of diffusers' `HunyuanVideo15TransformerBlock`.

On TPUs each norm of the video's tokens is one pass; those beside them are few. The block is diffusers' module, whose attention is
our processor's.
"""

import torch

from backend.models.common.flat_attention import Positions
from backend.models.common.token_norm import normed_in_one_pass, serves
from backend.runtime.mesh import Layout


def run_block(
    block,
    hidden: torch.Tensor,
    beside: torch.Tensor,
    time: torch.Tensor,
    counts: torch.Tensor,
    positions: Positions,
    *,
    layout: Layout,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The video's tokens [B, S, D] and those beside them [B, L, D] after the block; `time` [1, D] is the step's embedding."""
    ours, theirs = _modulation(block.norm1, time), _modulation(block.norm1_context, time)
    normed = _normed(layout, block.norm1.norm, hidden, *ours[:2])
    normed_beside = _modulated(block.norm1_context.norm(beside), *theirs[:2])
    attended, attended_beside = block.attn(normed, normed_beside, attention_mask=counts, image_rotary_emb=positions)
    hidden, beside = hidden + attended * ours[2], beside + attended_beside * theirs[2]
    fed = block.ff(_normed(layout, block.norm2, hidden, *ours[3:5]))
    fed_beside = block.ff_context(_modulated(block.norm2_context(beside), *theirs[3:5]))
    return hidden + ours[5] * fed, beside + theirs[5] * fed_beside


def _modulation(norm, time: torch.Tensor) -> list[torch.Tensor]:
    """Shift, scale and gate of attention, then of the feed-forward, each [1, 1, D]."""
    return [part.unsqueeze(1) for part in norm.linear(norm.silu(time)).chunk(6, dim=1)]


def _normed(
    layout: Layout, norm: torch.nn.LayerNorm, hidden: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    if serves(layout, hidden, scale):
        return normed_in_one_pass(layout, norm, hidden, scale, shift)
    return _modulated(norm(hidden), shift, scale)


def _modulated(normal: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return normal * (1 + scale) + shift
