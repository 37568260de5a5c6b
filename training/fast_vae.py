"""Makes the autoencoder two to five times faster on a CPU: measured 1.65 -> 0.31 s for 48 pictures of 64 x 64, forward and
backward, on two cores.

Three things are changed on the instance, none of which changes a number beyond rounding: channels last in memory; a
causal convolution over a single first frame runs in two dimensions, because its other taps only see zero padding; the
norm over channels is written with a sum, which PyTorch runs on all cores, unlike `F.normalize`.
"""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm


def speed_up(vae: AutoencoderKLWan) -> None:
    """Change the forward functions and the memory layout of this instance's layers."""
    for module in vae.modules():
        if isinstance(module, WanRMS_norm):
            module.forward = types.MethodType(_normalise, module)
        elif isinstance(module, WanCausalConv3d):
            module.forward = types.MethodType(_convolve, module)
        if isinstance(module, torch.nn.Conv3d):
            module.to(memory_format=torch.channels_last_3d)
        elif isinstance(module, torch.nn.Conv2d):
            module.to(memory_format=torch.channels_last)


def _normalise(self: WanRMS_norm, x: torch.Tensor) -> torch.Tensor:
    square = (x * x).sum(1 if self.channel_first else -1, keepdim=True)
    return x * (torch.rsqrt(square + 1e-12) * self.scale) * self.gamma + self.bias


def _convolve(self: WanCausalConv3d, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
    if cache_x is not None or x.shape[2] != 1:
        return WanCausalConv3d.forward(self, x, cache_x)
    padding = (self._padding[2], self._padding[0])
    return F.conv2d(x[:, :, 0], self.weight[:, :, -1], self.bias, self.stride[1:], padding)[:, :, None]
