"""Run diffusers' whole transformer over all frames of a video up to a block, with a timestep per token and a mask between
blocks.
"""

from __future__ import annotations

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from tests.gradients import without_gradients


@without_gradients
def masked_velocity(
    model: WanTransformer3DModel, clean: list[torch.Tensor], noisy: torch.Tensor, timestep: float, texts: list[torch.Tensor]
) -> torch.Tensor:
    """Compute the velocity of the block `noisy` [1, C, F, H, W] at this timestep, after the `clean` blocks at timestep 0. Each
    token sees its own and earlier blocks, and the text of its block. `texts` has one [1, L, D] per block.
    """
    frames = torch.cat([*clean, noisy], dim=2)
    tokens = frames.shape[3] * frames.shape[4] // 4 * noisy.shape[2]  # tokens per block
    of_block = torch.arange((len(clean) + 1) * tokens) // tokens
    of_text = torch.cat([torch.full([text.shape[1]], number) for number, text in enumerate(texts)])
    past, own = ((seen)[None, None] for seen in (of_block[:, None] >= of_block, of_block[:, None] == of_text))
    plain = WanAttnProcessor()

    def attend_to_past(attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        return plain(attn, hidden_states, None, past, rotary_emb)

    def attend_to_own_text(attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        return plain(attn, hidden_states, encoder_hidden_states, own, rotary_emb)

    for layer in model.blocks:
        layer.attn1.set_processor(attend_to_past)
        layer.attn2.set_processor(attend_to_own_text)
    timesteps = torch.where(of_block == len(clean), timestep, 0.0)[None]
    return model(frames, timesteps, torch.cat(texts, dim=1)).sample[:, :, -noisy.shape[2] :]
