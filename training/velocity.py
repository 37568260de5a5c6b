"""The transformer's forward pass for training: the same results as `WanTransformer3DModel`, several times faster.

diffusers has a timestep, and so six modulation vectors, for every token. In training a clip has only two timesteps: its own, and
0 for a clean first frame. So the modulation here is one vector per latent frame. Padded text is also faster: its positions are
equal and become one key whose logit is raised by the logarithm of their number. `tests/training` compares this function with the
class. Matrix products run in `dtype`, all other operations in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel


def predict_velocity(
    transformer: WanTransformer3DModel,
    latents: torch.Tensor,
    timestep: torch.Tensor,
    first_frame_timestep: torch.Tensor,
    text: torch.Tensor,
    text_bias: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    run_block: Callable | None = None,
    control: torch.Tensor | None = None,
    control_tokens: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return the velocity [B, C, F, H, W].

    Args:
        latents: noised latents [B, C, F, H, W].
        timestep, first_frame_timestep: [B], 0 to 1000.
        text: embeddings [B, L, D]. `text_bias` [B, 1, 1, L] is added to the cross-attention's logits.
        run_block: `run_one_block`, or this function compiled.
        control: inputs [B, 2 C + mask, F, H, W] of the control blocks of a `WanVACETransformer3DModel`.
        control_tokens: a list that gets the output [B, S, D] of each control block.
    """
    batch, channels, num_frames, height, width = latents.shape
    cosine, sine = transformer.rope(latents)
    hidden = transformer.patch_embedding(latents).flatten(2).transpose(1, 2)
    embedder = transformer.condition_embedder
    time, modulation = _embed_time(embedder, torch.cat([first_frame_timestep, timestep]), num_frames, dtype)
    text = linear(
        embedder.text_embedder.linear_2, F.gelu(linear(embedder.text_embedder.linear_1, text, dtype), approximate="tanh"), dtype
    )
    run_block, others = run_block or run_one_block, (text, text_bias, modulation, cosine, sine, dtype)
    hints = {} if control is None else _hints(transformer, hidden, control, run_block, others, control_tokens)
    for index, block in enumerate(transformer.blocks):
        hidden = run_block(block, hidden, *others)
        hidden = hidden + hints[index] if index in hints else hidden
    shift, scale = (transformer.scale_shift_table[None] + time[:, :, None]).unbind(2)
    hidden = modulate(hidden, shift, scale)
    patches = linear(transformer.proj_out, hidden, dtype).float()
    _, down, across = transformer.config.patch_size
    patches = patches.reshape(batch, num_frames, height // down, width // across, 1, down, across, channels)
    return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(batch, channels, num_frames, height, width)


def _hints(
    transformer, hidden: torch.Tensor, control: torch.Tensor, run_block: Callable, others: tuple, kept: list | None
) -> dict:
    """Return the additions of the control blocks by the number of the layer that they follow."""
    tokens, dtype = transformer.vace_patch_embedding(control).flatten(2).transpose(1, 2), others[-1]
    tokens = hidden + linear(transformer.vace_blocks[0].proj_in, tokens, dtype).float()
    hints = {}
    for block, layer in zip(transformer.vace_blocks, transformer.config.vace_layers, strict=True):
        tokens = run_block(block, tokens, *others)
        if kept is not None:
            kept.append(tokens)
        hints[layer] = linear(block.proj_out, tokens, dtype).float()
    return hints


def predict_blocks(
    transformer: WanTransformer3DModel,
    past: torch.Tensor,
    noisy: torch.Tensor,
    timesteps: torch.Tensor,
    text: torch.Tensor,
    text_bias: torch.Tensor,
    window: int,
    dtype: torch.dtype = torch.bfloat16,
    run_block: Callable | None = None,
) -> torch.Tensor:
    """Return the velocities [B, C, F, H, W] of all frames of videos that are generated frame by frame.

    Frame k of `noisy` [B, C, F, H, W] has the timestep k of `timesteps` [B, F]. It attends to itself and to the `window - 1`
    frames of `past` before it. These are at timestep 0 and attend to the frames before them. Each frame has its own text `text`
    [B, F, L, D], and `text_bias` [B, F, 1, 1, L] is added to the cross-attention's logits. `run_block` is `run_framewise_block`,
    or this function compiled.
    """
    batch, channels, num_frames, height, width = noisy.shape
    cosine, sine = (torch.cat([table, table], 1) for table in transformer.rope(noisy))
    patches = [transformer.patch_embedding(latents).flatten(2).transpose(1, 2) for latents in (past, noisy)]
    hidden, tokens = torch.cat(patches, 1), patches[0].shape[1] // num_frames
    embedder = transformer.condition_embedder
    both = torch.cat([torch.zeros_like(timesteps), timesteps], 1)
    time = embedder.time_embedder(embedder.timesteps_proj(both.flatten()))
    modulation = linear(embedder.time_proj, F.silu(time), dtype).float().unflatten(1, (6, -1))
    time, modulation = time.unflatten(0, both.shape), modulation.unflatten(0, both.shape)
    text = linear(
        embedder.text_embedder.linear_2, F.gelu(linear(embedder.text_embedder.linear_1, text, dtype), approximate="tanh"), dtype
    )
    text, text_bias = (torch.cat([value, value], 1).flatten(0, 1) for value in (text, text_bias))
    seen = _seen(num_frames, window).to(noisy.device).repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
    run_block = run_block or run_framewise_block
    for block in transformer.blocks:
        hidden = run_block(block, hidden, text, text_bias, modulation, cosine, sine, seen, dtype)
    shift, scale = (transformer.scale_shift_table[None] + time[:, :, None]).unbind(2)
    hidden = modulate(hidden, shift, scale)[:, num_frames * tokens :]
    patches = linear(transformer.proj_out, hidden, dtype).float()
    _, down, across = transformer.config.patch_size
    patches = patches.reshape(batch, num_frames, height // down, width // across, 1, down, across, channels)
    return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(batch, channels, num_frames, height, width)


def _seen(num_frames: int, window: int) -> torch.Tensor:
    """Return the attention mask [2F, 2F] between the frames of [past, noisy]."""
    row, column = torch.meshgrid(torch.arange(num_frames), torch.arange(num_frames), indexing="ij")
    before = (column < row) & (column > row - window)
    own = row == column
    return torch.cat([torch.cat([before | own, torch.zeros_like(own)], 1), torch.cat([before, own], 1)])


def run_framewise_block(block, hidden, text, text_bias, modulation, cosine, sine, seen, dtype) -> torch.Tensor:
    """Run `run_one_block` with the attention mask `seen` [S, S] and a separate text for each frame."""
    shift, scale, gate, shift_ff, scale_ff, gate_ff = (block.scale_shift_table[None] + modulation).unbind(2)
    attended = seen_attention(block.attn1, modulate(hidden, shift, scale), cosine, sine, seen, dtype)
    hidden = hidden + per_frame(attended, gate)
    normal = F.layer_norm(hidden, hidden.shape[-1:], block.norm2.weight, block.norm2.bias, block.norm2.eps)
    frames = normal.unflatten(1, (modulation.shape[1], -1)).flatten(0, 1)
    hidden = hidden + cross_attention(block.attn2, frames, text, text_bias, dtype).reshape(hidden.shape)
    inner = F.gelu(linear(block.ffn.net[0].proj, modulate(hidden, shift_ff, scale_ff), dtype), approximate="tanh")
    return hidden + per_frame(linear(block.ffn.net[2], inner, dtype).float(), gate_ff)


def _embed_time(embedder, timesteps: torch.Tensor, num_frames: int, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return time embedding [B, F, D] and modulation [B, F, 6, D], from the first frames' timesteps and the others."""
    time = embedder.time_embedder(embedder.timesteps_proj(timesteps))
    modulation = linear(embedder.time_proj, F.silu(time), dtype).float().unflatten(1, (6, -1))
    return _spread(time, num_frames), _spread(modulation, num_frames)


def _spread(value: torch.Tensor, num_frames: int) -> torch.Tensor:
    first, others = value.chunk(2)
    return torch.cat([first[:, None], others[:, None].expand(-1, num_frames - 1, *others.shape[1:])], 1)


def run_one_block(
    block, hidden, text, text_bias, modulation, cosine, sine, dtype, attend: Callable | None = None
) -> torch.Tensor:
    """Run a transformer block on tokens [B, S, D]. `modulation` [B, F, 6, D], `cosine` and `sine` [1, S, 1, D / heads].

    `attend` computes self-attention from the arguments of `self_attention`, which is the default.
    """
    shift, scale, gate, shift_ff, scale_ff, gate_ff = (block.scale_shift_table[None] + modulation).unbind(2)
    attended = (attend or self_attention)(block.attn1, modulate(hidden, shift, scale), cosine, sine, dtype)
    hidden = hidden + per_frame(attended, gate)
    normal = F.layer_norm(hidden, hidden.shape[-1:], block.norm2.weight, block.norm2.bias, block.norm2.eps)
    hidden = hidden + cross_attention(block.attn2, normal, text, text_bias, dtype)
    inner = F.gelu(linear(block.ffn.net[0].proj, modulate(hidden, shift_ff, scale_ff), dtype), approximate="tanh")
    return hidden + per_frame(linear(block.ffn.net[2], inner, dtype).float(), gate_ff)


def modulate(hidden: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Apply layer norm, then a shift and scale [B, F, D] for each frame."""
    normal = F.layer_norm(hidden, hidden.shape[-1:], eps=1e-6)
    frames = normal.unflatten(1, (shift.shape[1], -1))
    return (frames * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)


def per_frame(value: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return (value.unflatten(1, (gate.shape[1], -1)) * gate[:, :, None]).flatten(1, 2)


def linear(layer: torch.nn.Linear, value: torch.Tensor, dtype) -> torch.Tensor:
    return F.linear(value.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


def self_attention(attention, hidden, cosine, sine, dtype) -> torch.Tensor:
    """Compute self-attention of tokens [B, S, D]."""
    return _attend(attention, *projected(attention, hidden, cosine, sine, dtype), None, dtype)


def seen_attention(attention, hidden, cosine, sine, seen, dtype) -> torch.Tensor:
    """Compute self-attention of tokens [B, S, D] with the mask `seen` [S, S]."""
    heads = (array.to(dtype) for array in projected(attention, hidden, cosine, sine, dtype))
    attended = F.scaled_dot_product_attention(*heads, attn_mask=seen)
    return linear(attention.to_out[0], attended.transpose(1, 2).flatten(2), dtype).float()


def projected(attention, hidden, cosine, sine, dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rotated queries and keys, and values, of tokens [B, S, D]: each [B, H, S, D / heads]."""
    query, key = (
        _rotate(_heads(_rms_norm(norm, linear(project, hidden, dtype)), attention.heads), cosine, sine)
        for norm, project in ((attention.norm_q, attention.to_q), (attention.norm_k, attention.to_k))
    )
    return query, key, _heads(linear(attention.to_v, hidden, dtype), attention.heads)


def cross_attention(attention, hidden, text, text_bias, dtype) -> torch.Tensor:
    query = _heads(_rms_norm(attention.norm_q, linear(attention.to_q, hidden, dtype)), attention.heads)
    key = _heads(_rms_norm(attention.norm_k, linear(attention.to_k, text, dtype)), attention.heads)
    value = _heads(linear(attention.to_v, text, dtype), attention.heads)
    return _attend(attention, query, key, value, text_bias, dtype)


def _attend(attention, query, key, value, bias, dtype) -> torch.Tensor:
    scores = torch.matmul(query.to(dtype), key.to(dtype).transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    weights = torch.softmax(scores if bias is None else scores + bias, -1)
    attended = torch.matmul(weights.to(dtype), value.to(dtype)).transpose(1, 2).flatten(2)
    return linear(attention.to_out[0], attended, dtype).float()


def _rms_norm(norm: torch.nn.RMSNorm, value: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(value.float(), norm.normalized_shape, norm.weight, norm.eps)


def _heads(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Reshape [B, S, H * D] to [B, H, S, D]."""
    return value.unflatten(2, (heads, -1)).transpose(1, 2)


def _rotate(value: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding to neighbouring pairs. `cosine` and `sine` are [1, S, 1, D]."""
    pairs = value.unflatten(-1, (-1, 2))
    turned = torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2)
    return value * cosine.transpose(1, 2) + turned * sine.transpose(1, 2)
