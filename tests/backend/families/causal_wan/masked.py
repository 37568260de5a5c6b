"""diffusers' whole transformer over all frames of a video so far, with a timestep for each token and a mask between blocks."""

from __future__ import annotations

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor


@torch.no_grad()
def masked_velocity(
    model: WanTransformer3DModel, clean: list[torch.Tensor], noisy: torch.Tensor, timestep: float, text: torch.Tensor
) -> torch.Tensor:
    """The velocity of the block `noisy` [1, C, F, H, W] at this timestep, after the `clean` blocks at timestep 0. Every token sees
    its own block and those before it."""
    frames = torch.cat([*clean, noisy], dim=2)
    tokens = frames.shape[3] * frames.shape[4] // 4 * noisy.shape[2]  # of a block
    of_block = torch.arange((len(clean) + 1) * tokens) // tokens
    mask, plain = (of_block[:, None] >= of_block)[None, None], WanAttnProcessor()

    def attend(attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        return plain(attn, hidden_states, None, mask, rotary_emb)

    for layer in model.blocks:
        layer.attn1.set_processor(attend)
    timesteps = torch.where(of_block == len(clean), timestep, 0.0)[None]
    return model(frames, timesteps, text).sample[:, :, -noisy.shape[2] :]
