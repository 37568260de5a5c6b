"""Sample many clips at once with the training networks, for evaluation: diffusers' scheduler, training's fast forward pass.

The product's own pipeline makes one video at a time; `tests/parity` compares it with diffusers, and `tests/training` compares
the forward pass used here with diffusers' class, so that scores made here are the scores of the checkpoint.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler
from transformers import AutoTokenizer

from training.fast_vae import speed_up
from training.latents import encode, latent_statistics
from training.train_transformer import TextAndTransformer, encode_text
from training.velocity import predict_velocity


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to sample: the preset's own values."""

    width: int = 96
    height: int = 96
    num_frames: int = 17
    steps: int = 20
    guidance: float = 4.0
    flow_shift: float = 3.0
    batch: int = 20
    seed: int = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """A checkpoint's networks in float32."""

    networks: TextAndTransformer
    vae: AutoencoderKLWan
    device: str

    @classmethod
    def load(cls, model: Path) -> Sampler:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        networks = TextAndTransformer.load(model, AutoTokenizer.from_pretrained(model / "tokenizer"), device)
        vae = AutoencoderKLWan.from_pretrained(model / "vae").to(device).eval()
        speed_up(vae)
        return cls(networks=networks, vae=vae, device=device)

    @torch.no_grad()
    def sample(
        self, prompts: list[str], seeds: list[int], settings: Settings, images: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Videos, uint8 [B, F, H, W, 3]; `images` [B, 3, 1, H, W] in [-1, 1] are the first frames of image-to-video."""
        shape = (self.vae.config.z_dim, (settings.num_frames - 1) // 4 + 1, settings.height // 16, settings.width // 16)
        latents = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        latents = latents.to(self.device)
        first = None if images is None else encode(self.vae, images.to(self.device))
        text, bias = encode_text(self.networks, [*prompts, *[""] * len(prompts)])
        scheduler = UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=settings.flow_shift
        )
        scheduler.set_timesteps(settings.steps)
        for timestep in scheduler.timesteps:
            velocity = self._guided_velocity(latents, timestep.float(), first, text, bias, settings.guidance)
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
        return self._decode(_with_first(latents, first))

    def _guided_velocity(self, latents, timestep, first, text, bias, guidance: float) -> torch.Tensor:
        latents = _with_first(latents, first).repeat(2, 1, 1, 1, 1)
        timesteps = timestep.to(self.device).expand(len(latents))
        first_timesteps = timesteps if first is None else torch.zeros_like(timesteps)
        velocity = predict_velocity(self.networks.transformer, latents, timesteps, first_timesteps, text, bias, torch.float32)
        prompted, unprompted = velocity.chunk(2)
        return unprompted + guidance * (prompted - unprompted)

    def _decode(self, latents: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(values, device=self.device).view(1, -1, 1, 1, 1) for values in latent_statistics(self.vae))
        video = self.vae.decode(latents * std + mean).sample
        return ((video.permute(0, 2, 3, 4, 1) + 1) * 127.5).round().clamp(0, 255).byte().cpu()


def _with_first(latents: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
    return latents if first is None else torch.cat([first, latents[:, :, 1:]], 2)
