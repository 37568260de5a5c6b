"""One block of HunyuanVideo 1.5's transformer, with the arithmetic of diffusers' `HunyuanVideo15TransformerBlock`.

The block is diffusers' module with this project's attention processor. On TPUs each norm of the video tokens is one Pallas pass,
which reads the tokens once. The norms of the context tokens need no such pass, because the context tokens are few.
"""

import torch

from backend.models.common.flat_attention import Positions
from backend.models.common.token_norm import can_use_pass, normalise_in_one_pass
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
    """Run the block on the video tokens `hidden` [B, S, D] and the context tokens `beside` [B, L, D]. Return both.

    `time` [1, D] is the embedding of the timestep. `counts` [B] are the numbers of context tokens without padding.
    """
    ours, theirs = _compute_modulation(block.norm1, time), _compute_modulation(block.norm1_context, time)
    normed = _normalise(layout, block.norm1.norm, hidden, *ours[:2])
    normed_beside = _modulate(block.norm1_context.norm(beside), *theirs[:2])
    attended, attended_beside = block.attn(normed, normed_beside, attention_mask=counts, image_rotary_emb=positions)
    hidden, beside = hidden + attended * ours[2], beside + attended_beside * theirs[2]
    fed = block.ff(_normalise(layout, block.norm2, hidden, *ours[3:5]))
    fed_beside = block.ff_context(_modulate(block.norm2_context(beside), *theirs[3:5]))
    return hidden + ours[5] * fed, beside + theirs[5] * fed_beside


def _compute_modulation(norm, time: torch.Tensor) -> list[torch.Tensor]:
    """Return shift, scale and gate of the attention, then of the feed-forward, each [1, 1, D]."""
    return [part.unsqueeze(1) for part in norm.linear(norm.silu(time)).chunk(6, dim=1)]


def _normalise(
    layout: Layout, norm: torch.nn.LayerNorm, hidden: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    if can_use_pass(layout, hidden, scale):
        return normalise_in_one_pass(layout, norm, hidden, scale, shift)
    return _modulate(norm(hidden), shift, scale)


def _modulate(normal: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return normal * (1 + scale) + shift
