"""Speed up an autoencoder on a CPU two to five times: measured 1.65 -> 0.31 s for 48 images of 64 x 64, forward and backward, on
two cores.

Three changes of the instance keep the results up to rounding:

- The memory layout has channels last.
- A convolution over a single first frame runs in two dimensions, because its other taps only read padding. The padding is zero in
  the autoencoder of Wan, and the frame itself for HunyuanVideo 1.5 and LTX-2.
- The norm over channels uses a sum, which PyTorch runs on all cores, unlike `F.normalize`, or PyTorch's own norm.

HunyuanVideo 1.5's attention also gets a mask that supports batches; its own mask does not.
"""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import (
    HunyuanVideo15AttnBlock,
    HunyuanVideo15CausalConv3d,
    HunyuanVideo15RMS_norm,
)
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import LTX2VideoCausalConv3d, PerChannelRMSNorm
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm


def speed_up(vae: torch.nn.Module) -> None:
    """Replace the forward functions and the memory layout of the layers of an `AutoencoderKLWan`, `AutoencoderKLHunyuanVideo15`
    or `AutoencoderKLLTX2Video`."""
    for module in vae.modules():
        if isinstance(module, WanRMS_norm | HunyuanVideo15RMS_norm):
            module.forward = types.MethodType(_normalise, module)
        elif isinstance(module, WanCausalConv3d):
            module.forward = types.MethodType(_convolve, module)
        elif isinstance(module, HunyuanVideo15CausalConv3d):
            module.forward = types.MethodType(_convolve_after_copies, module)
        elif isinstance(module, PerChannelRMSNorm):
            module.forward = types.MethodType(_normalise_pixels, module)
        elif isinstance(module, LTX2VideoCausalConv3d):
            module.forward = types.MethodType(_convolve_between_copies, module)
        elif isinstance(module, HunyuanVideo15AttnBlock):
            module.prepare_causal_attention_mask = _causal_mask
        if isinstance(module, torch.nn.Conv3d):
            module.to(memory_format=torch.channels_last_3d)
        elif isinstance(module, torch.nn.Conv2d):
            module.to(memory_format=torch.channels_last)


def _normalise(self: WanRMS_norm | HunyuanVideo15RMS_norm, x: torch.Tensor) -> torch.Tensor:
    square = (x * x).sum(1 if self.channel_first else -1, keepdim=True)
    return x * (torch.rsqrt(square + 1e-12) * self.scale) * self.gamma + self.bias


def _convolve(self: WanCausalConv3d, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
    if cache_x is not None or x.shape[2] != 1:
        return WanCausalConv3d.forward(self, x, cache_x)
    padding = (self._padding[2], self._padding[0])
    return F.conv2d(x[:, :, 0], self.weight[:, :, -1], self.bias, self.stride[1:], padding)[:, :, None]


def _convolve_after_copies(self: HunyuanVideo15CausalConv3d, hidden_states: torch.Tensor) -> torch.Tensor:
    if hidden_states.shape[2] != 1:
        return HunyuanVideo15CausalConv3d.forward(self, hidden_states)
    padded = F.pad(hidden_states[:, :, 0], self.time_causal_padding[:4], mode=self.pad_mode)
    return F.conv2d(padded, self.conv.weight.sum(2), self.conv.bias)[:, :, None]


def _normalise_pixels(self: PerChannelRMSNorm, x: torch.Tensor) -> torch.Tensor:
    last = x.movedim(1, -1)
    return F.rms_norm(last, last.shape[-1:], eps=self.eps).movedim(-1, 1)


def _convolve_between_copies(self: LTX2VideoCausalConv3d, hidden_states: torch.Tensor, causal: bool = True) -> torch.Tensor:
    if hidden_states.shape[2] != 1 or self.conv.padding_mode != "zeros":
        return LTX2VideoCausalConv3d.forward(self, hidden_states, causal)
    padding = self.conv.padding[1:]
    return F.conv2d(hidden_states[:, :, 0], self.conv.weight.sum(2), self.conv.bias, padding=padding)[:, :, None]


def _causal_mask(n_frame: int, n_hw: int, dtype: torch.dtype, device: torch.device, batch_size: int) -> torch.Tensor:
    """Return the mask [L, L] for `n_frame` frames of `n_hw` positions: 0 for positions of the same or an earlier frame."""
    frames = torch.arange(n_frame, device=device).repeat_interleave(n_hw)
    return torch.zeros(len(frames), len(frames), dtype=dtype, device=device).masked_fill(frames[:, None] < frames, float("-inf"))
