"""One layer of Wan's transformers, with the arithmetic of diffusers' `WanTransformerBlock`. Functions run it whole or in parts.

`modulation` (float32) has the shifts, scales and gates of the step: [1, S, 6, D] for each of the S tokens, or [1, 1, 6, D].
"""

import torch

from backend.models.common.flat_attention import Positions
from backend.models.common.token_norm import can_use_pass, normalise_in_one_pass
from backend.models.wan.attention import TextKeys
from backend.runtime.mesh import Layout


def run_block(
    block, hidden: torch.Tensor, text: TextKeys, modulation: torch.Tensor, positions: Positions, *, layout: Layout
) -> torch.Tensor:
    attended = attend(block, hidden, text, modulation, positions, layout=layout)
    return feed_forward(block, attended, modulation, layout=layout)


def attend(
    block, hidden: torch.Tensor, text: TextKeys, modulation: torch.Tensor, positions: Positions, *, layout: Layout
) -> torch.Tensor:
    values = block.scale_shift_table.unsqueeze(0) + modulation.float()
    shift, scale, gate = [part.squeeze(2) for part in values.chunk(6, dim=2)][:3]
    normed = _apply_norm(layout, block.norm1, hidden, scale, shift)
    hidden = (hidden.float() + block.attn1(normed, None, None, positions) * gate).type_as(hidden)
    normed = _apply_norm(layout, block.norm2, hidden)
    return hidden + block.attn2(normed, text, None, None)


def feed_forward(block, hidden: torch.Tensor, modulation: torch.Tensor, *, layout: Layout) -> torch.Tensor:
    values = block.scale_shift_table.unsqueeze(0) + modulation.float()
    shift, scale, gate = [part.squeeze(2) for part in values.chunk(6, dim=2)][3:]
    normed = _apply_norm(layout, block.norm3, hidden, scale, shift)
    return (hidden.float() + block.ffn(normed).float() * gate).type_as(hidden)


def _apply_norm(
    layout: Layout,
    norm: torch.nn.Module,
    hidden: torch.Tensor,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply layer norm to tokens [B, S, D], then multiply by 1 + `scale` and add `shift`, if they are given.

    On TPUs a Pallas kernel computes the norm, unless each token has its own scale.
    """
    if isinstance(norm, torch.nn.LayerNorm) and can_use_pass(layout, hidden, scale):
        return normalise_in_one_pass(layout, norm, hidden, scale, shift)
    normal = norm(hidden.float())
    return (normal if scale is None else normal * (1 + scale) + shift).type_as(hidden)
