"""wan-tiny-animate's forward pass for training: both passes of `WanAnimate2Transformer3DModel` in one, with the same results.

The class first passes the driving video and stores every layer's keys and values. Then it runs a step with them. The driving
tokens do not attend to the video's tokens. So here both are in one sequence with a mask, and gradients reach the driving video
too. `tests/training` compares the pass with the class. Matrix products run in `dtype`, all other operations in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from diffusers import WanAnimate2Transformer3DModel

from training.velocity import cross_attention, linear, modulate, per_frame, seen_attention

DRIVING_TIMESTEP = 1.0  # the class's value


def predict_animated(
    transformer: WanAnimate2Transformer3DModel,
    latents: torch.Tensor,
    condition: torch.Tensor,
    driving: torch.Tensor,
    timestep: torch.Tensor,
    text: tuple[torch.Tensor, torch.Tensor],
    driving_text: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype = torch.bfloat16,
    run_block: Callable | None = None,
) -> torch.Tensor:
    """Return the velocity [B, C, 1 + F, H, W] of the image's frame and a segment's frames.

    Args:
        latents: noised latents [B, C, 1 + F, H, W].
        condition: mask and latents [B, 4 + C, 1 + F, H, W].
        driving: the driving video's latents [B, C, F, H, W].
        timestep: [B], 0 to 1000.
        text: embeddings [B, L, D], and the bias [B, 1, 1, L] of the cross-attention's logits.
        driving_text: the same for the driving video, [1, L, D] and [1, 1, 1, L].
        run_block: `run_animated_block`, or this function compiled.
    """
    batch, channels, num_frames, height, width = latents.shape
    down, across = (side // patch for side, patch in zip((height, width), transformer.config.patch_size[1:], strict=True))
    known = torch.cat([torch.ones_like(driving[:, :4]), driving], 1)
    parts = ((latents, condition), (driving, known))
    hidden = torch.cat([transformer.patch_embedding(torch.cat(part, 1)).flatten(2).transpose(1, 2) for part in parts], 1)
    time, modulation = _embed_time(transformer, timestep, num_frames, dtype)
    texts = [(_embed_text(transformer, embeddings, dtype), bias) for embeddings, bias in (text, driving_text)]
    cosine, sine = rotations(transformer, num_frames, down, across)
    seen = who_sees_whom(num_frames, down * across).to(latents.device)
    run_block = run_block or run_animated_block
    for block in transformer.blocks:
        hidden = run_block(block, hidden, *texts[0], *texts[1], modulation, cosine, sine, seen, dtype)
    hidden = hidden[:, : num_frames * down * across]
    shift, scale = (transformer.head.modulation[None] + time[:, :num_frames, None]).unbind(2)
    patches = linear(transformer.head.head, modulate(hidden, shift, scale), dtype).float()
    patches = patches.reshape(batch, num_frames, down, across, 1, height // down, width // across, channels)
    return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(latents.shape)


def run_animated_block(
    block, hidden, text, text_bias, driving_text, driving_bias, modulation, cosine, sine, seen, dtype
) -> torch.Tensor:
    """Run a block on tokens [B, S, D]: the tokens of a video of F frames, then the driving video's tokens.

    `modulation` is [B, 2 F - 1, 6, D], `cosine` and `sine` are [1, S, 1, D / heads], and the mask `seen` is [S, S].
    """
    shift, scale, gate, shift_ff, scale_ff, gate_ff = (block.modulation[None] + modulation).unbind(2)
    attended = seen_attention(block.self_attn, modulate(hidden, shift, scale), cosine, sine, seen, dtype)
    hidden = hidden + per_frame(attended, gate)
    normal = F.layer_norm(hidden, hidden.shape[-1:], block.norm3.weight, block.norm3.bias, block.norm3.eps)
    frames = modulation.shape[1]
    made, driving = normal.split([hidden.shape[1] * count // frames for count in ((frames + 1) // 2, frames // 2)], 1)
    told = [
        cross_attention(block.cross_attn, made, text, text_bias, dtype),
        cross_attention(block.cross_attn, driving, driving_text, driving_bias, dtype),
    ]
    hidden = hidden + torch.cat(told, 1)
    inner = F.gelu(linear(block.ffn[0], modulate(hidden, shift_ff, scale_ff), dtype), approximate="tanh")
    return hidden + per_frame(linear(block.ffn[2], inner, dtype).float(), gate_ff)


def who_sees_whom(num_frames: int, tokens: int) -> torch.Tensor:
    """Return the attention mask [S, S], true where a row's token attends to a column's token.

    The video's tokens attend to all tokens of the video and, in frame f, to the driving video's tokens of frame f - 1. The
    driving video's tokens attend to each other.
    """
    made = torch.ones(num_frames, num_frames, dtype=torch.bool)
    driving = made[1:, 1:]
    beside = torch.eye(num_frames, dtype=torch.bool)[:, 1:]
    frames = torch.cat([torch.cat([made, beside], 1), torch.cat([torch.zeros_like(beside.T), driving], 1)])
    return frames.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)


def rotations(transformer: WanAnimate2Transformer3DModel, num_frames: int, down: int, across: int) -> tuple[torch.Tensor, ...]:
    """Return cosine and sine [1, S, 1, D / heads] of all tokens, the video's before the driving tokens."""
    config, device = transformer.config, transformer.patch_embedding.weight.device
    given = (config.refer_offset_t, config.refer_offset_h, config.refer_offset_w)
    grid = (num_frames - 1, down, across)
    offsets = tuple(side if offset < 0 else offset for offset, side in zip(given, grid, strict=True))
    parts = [
        _angles(transformer._rope_freqs((0, 0, 0), device), num_frames, down, across),
        _angles(transformer._rope_freqs(offsets, device), *grid),
    ]
    turns = torch.cat(parts).repeat_interleave(2, 1)[None, :, None]
    return turns.real.float(), turns.imag.float()


def _angles(table: torch.Tensor, frames: int, down: int, across: int) -> torch.Tensor:
    half = table.shape[1]
    over_time, over_rows, over_columns = table.split([half - 2 * (half // 3), half // 3, half // 3], 1)
    shape = (frames, down, across, -1)
    axes = (
        over_time[:frames, None, None].expand(shape),
        over_rows[None, :down, None].expand(shape),
        over_columns[None, None, :across].expand(shape),
    )
    return torch.cat(axes, -1).flatten(0, 2)


def _embed_time(transformer, timestep: torch.Tensor, num_frames: int, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return time embedding [B, 2 F - 1, D] and modulation [B, 2 F - 1, 6, D], the video's frames before the driving frames."""
    both = torch.stack([timestep, torch.full_like(timestep, DRIVING_TIMESTEP)], 1)
    time = transformer.time_embedding(transformer.timesteps_proj(both.flatten()))
    modulation = linear(transformer.time_projection[1], F.silu(time), dtype).float().unflatten(1, (6, -1))
    counts = torch.tensor([num_frames, num_frames - 1], device=timestep.device)
    return tuple(value.unflatten(0, both.shape).repeat_interleave(counts, 1) for value in (time, modulation))


def _embed_text(transformer, text: torch.Tensor, dtype) -> torch.Tensor:
    first, _, second = transformer.text_embedding
    return linear(second, F.gelu(linear(first, text, dtype), approximate="tanh"), dtype)
