"""Convolutions over time as matrix products: the TPU's compiler takes minutes for a vocoder's many narrow convolutions, and less
for these. Each function stands for the `forward` of diffusers' or PyTorch's own layer; the sums are the same, in another order.
Arrays are [B, C, N].
"""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from diffusers.pipelines.ltx2.vocoder import CausalSTFT, DownSample1d, UpSample1d


def with_products(vocoder: torch.nn.Module) -> torch.nn.Module:
    """The vocoder, whose layers work by products from now on."""
    kinds = {
        torch.nn.Conv1d: _convolve,
        torch.nn.ConvTranspose1d: _convolve_transposed,
        CausalSTFT: _transform,
        DownSample1d: _filter_down,
        UpSample1d: _filter_up,
    }
    for module in vocoder.modules():
        if type(module) in kinds:
            module.forward = types.MethodType(kinds[type(module)], module)
    return vocoder


def _convolve(self: torch.nn.Conv1d, values: torch.Tensor) -> torch.Tensor:
    (dilation,), (size,) = self.dilation, self.kernel_size
    padding = dilation * (size - 1) // 2 if self.padding == "same" else self.padding[0]
    made = _product(F.pad(values, (padding, padding)), self.weight, dilation)
    return made if self.bias is None else made + self.bias[:, None]


def _product(values: torch.Tensor, weight: torch.Tensor, dilation: int = 1) -> torch.Tensor:
    """[B, N', L'] of [B, C, L] and a weight [N', C, taps]."""
    taps = weight.shape[2]
    length = values.shape[2] - dilation * (taps - 1)
    seen = torch.cat([values[..., tap * dilation : tap * dilation + length] for tap in range(taps)], 1)
    return torch.matmul(weight.transpose(1, 2).flatten(1), seen)


def _convolve_transposed(self: torch.nn.ConvTranspose1d, values: torch.Tensor) -> torch.Tensor:
    (stride,), (padding,), (size,) = self.stride, self.padding, self.kernel_size
    parts = -(-size // stride)
    weight = F.pad(self.weight, (0, parts * stride - size)).flatten(1)  # [C, N' * parts * stride]
    spread = torch.matmul(weight.T, values).unflatten(1, (-1, parts, stride))
    made = _interleaved(sum(F.pad(spread[:, :, part], (part, parts - 1 - part)) for part in range(parts)))
    made = made[..., padding : padding + (values.shape[2] - 1) * stride + size - 2 * padding]
    return made if self.bias is None else made + self.bias[:, None]


def _interleaved(phases: torch.Tensor) -> torch.Tensor:
    """[B, C, L s] of [B, C, s, L]."""
    return phases.transpose(2, 3).flatten(2)


def _filter_down(self: DownSample1d, values: torch.Tensor) -> torch.Tensor:
    """Each channel through one filter, every `ratio`-th value kept."""
    ratio, size = self.ratio, self.kernel_size
    padded = F.pad(values, (self.pad_left, self.pad_right), mode=self.padding_mode)
    length = (padded.shape[2] - size) // ratio + 1
    padded = F.pad(padded, (0, -padded.shape[2] % ratio + ratio))
    phases = padded.unflatten(2, (-1, ratio)).unbind(3)
    return sum(self.filter[0, 0, tap] * phases[tap % ratio][..., tap // ratio :][..., :length] for tap in range(size))


def _filter_up(self: UpSample1d, values: torch.Tensor) -> torch.Tensor:
    """Each channel through one filter, with `ratio` values for each."""
    ratio, size = self.ratio, self.kernel_size
    padded = F.pad(values, (self.pad, self.pad), mode=self.padding_mode)
    parts = -(-size // ratio)
    taps = F.pad(self.filter[0, 0].to(values.dtype), (0, parts * ratio - size)).view(parts, ratio, 1)
    phases = sum(F.pad(padded[:, :, None] * taps[part], (part, parts - 1 - part)) for part in range(parts))
    made = ratio * _interleaved(phases)[..., : (padded.shape[2] - 1) * ratio + size]
    return made[..., self.pad_left : -self.pad_right]


def _transform(self: CausalSTFT, waveform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Magnitudes of a short-time Fourier transform that sees no later sample; the phases, which nothing reads, are zero."""
    samples = (waveform if waveform.ndim == 3 else waveform.unsqueeze(1))[:, 0]
    hop, size = self.hop_length, self.forward_basis.shape[2]
    samples = F.pad(samples, (max(0, self.window_length - hop), 0))
    frames, parts = (samples.shape[1] - size) // hop + 1, -(-size // hop)
    samples = F.pad(samples, (0, (frames + parts - 1) * hop - samples.shape[1]))
    cut = samples.unflatten(1, (-1, hop)).transpose(1, 2)  # [B, hop, frames + parts - 1]
    basis = F.pad(self.forward_basis[:, 0], (0, parts * hop - size)).unflatten(1, (parts, hop)).transpose(1, 2)
    real, imaginary = _product(cut, basis).chunk(2, 1)
    magnitude = torch.sqrt(real**2 + imaginary**2)
    return magnitude, torch.zeros_like(magnitude)
