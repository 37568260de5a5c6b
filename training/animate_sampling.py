"""Sample wan-tiny-animate's videos with the training networks, segment by segment, as diffusers' modular pipeline does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from training.animate import condition_of
from training.animate_networks import AnimateNetworks
from training.animate_world import SEGMENT, frames_in_segments, num_segments
from training.checkpoint import FLOW_SHIFT
from training.fast_vae import speed_up
from training.latents import encode, latent_statistics
from training.recipes import WAN_TINY
from training.wan_vae import WAN_AUTOENCODER


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnimateSettings:
    """Settings of the sampler. The defaults are as in the preset. The model has no guidance."""

    steps: int = 12
    flow_shift: float = FLOW_SHIFT
    solver: Literal["euler", "unipc"] = (
        "euler"  # diffusers' own steps pass a generator to the solver, which UniPC does not accept
    )

    def schedule(self) -> FlowMatchEulerDiscreteScheduler | UniPCMultistepScheduler:
        """Create diffusers' scheduler, a new one for each segment."""
        if self.solver == "unipc":
            return WAN_TINY.schedule(self.steps, self.flow_shift)
        scheduler = FlowMatchEulerDiscreteScheduler(shift=self.flow_shift)
        scheduler.set_timesteps(self.steps)
        return scheduler


class AnimateSampler:
    """A checkpoint's networks in float32."""

    def __init__(self, networks: AnimateNetworks, vae: torch.nn.Module) -> None:
        self.networks, self.vae = networks, vae

    @classmethod
    def load(cls, model: Path, tokenizer: Path | None = None, vae: Path | None = None) -> AnimateSampler:
        """Load a checkpoint folder, or a work folder with another folder's tokenizer and autoencoder."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        autoencoder = WAN_AUTOENCODER.load(vae or model / "vae").to(device).eval()
        speed_up(autoencoder)
        return cls(AnimateNetworks.load(model, tokenizer or model / "tokenizer", device), autoencoder)

    @torch.no_grad()
    def sample(
        self, pictures: torch.Tensor, clips: torch.Tensor, prompts: list[str], seeds: list[int], settings: AnimateSettings
    ) -> torch.Tensor:
        """Sample videos, uint8 [B, F, H, W, 3], from images [B, 3, 1, H, W] and driving videos [B, 3, F, H, W] in [-1, 1]."""
        clip = clips[:, :, frames_in_segments(clips.shape[2])]
        picture, text = encode(self.vae, pictures), self.networks.text.encode(prompts)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        frames: list[torch.Tensor] = []
        for number in range(num_segments(clips.shape[2])):
            begin = number * (SEGMENT - 1)
            carried = torch.zeros_like(clip[:, :, :SEGMENT])
            if number:
                carried[:, :, :1] = frames[-1][:, :, -1:]
            is_later = torch.full((len(clip),), bool(number))
            condition = condition_of(picture, encode(self.vae, carried), is_later)
            driving = encode(self.vae, clip[:, :, begin : begin + SEGMENT])
            latents = self._denoise(condition, driving, text, generators, settings)
            made = self._decode(latents[:, :, 1:])
            frames.append(made[:, :, 1:] if number else made)
        video = torch.cat(frames, 2)[:, :, : clips.shape[2]]
        return ((video.permute(0, 2, 3, 4, 1) + 1) * 127.5).round().clamp(0, 255).byte()

    def _denoise(self, condition, driving, text, generators, settings: AnimateSettings) -> torch.Tensor:
        shape = (self.networks.latent_channels, *condition.shape[2:])
        latents = torch.stack([torch.randn(shape, generator=generator) for generator in generators])
        scheduler = settings.schedule()
        for timestep in scheduler.timesteps:
            velocity = self.networks.predict(latents, condition, driving, timestep.float().expand(len(latents)), text)
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
        return latents

    def _decode(self, latents: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in latent_statistics(self.vae))
        return self.vae.decode(latents * std + mean).sample
