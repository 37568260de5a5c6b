"""Sample many clips at once for evaluation, with diffusers' scheduler and the training's fast forward pass.

The product's own pipeline generates one video at a time. `tests/parity` compares it with diffusers, and `tests/training` compares
this forward pass with diffusers' class. So these scores are valid for the checkpoint.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import torch

from training.fast_vae import speed_up
from training.latents import Vae, encode, latent_statistics
from training.recipes import Recipe, recipe_of
from training.train_transformer import SampledNetworks
from training.turbo_networks import STEPS, TIMESTEPS, TurboNetworks, is_sparse, take_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the sampler. The defaults are as in the preset."""

    width: int = 96
    height: int = 96
    num_frames: int = 17
    steps: int = 20
    guidance: float = 4.0
    flow_shift: float = 3.0
    batch: int = 20
    seed: int = 7


class Sampler:
    """A checkpoint's networks in float32."""

    def __init__(self, networks: SampledNetworks, vae: Vae, recipe: Recipe, device: str) -> None:
        self.networks, self.vae, self.recipe, self.device = networks, vae, recipe, device

    @classmethod
    def load(cls, model: Path) -> Sampler:
        """Load the checkpoint folder of a demo model. The result is a `TurboSampler` if the model has sparse attention."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        recipe = recipe_of(model)
        vae = recipe.autoencoder.load(model / "vae").to(device).eval()
        speed_up(vae)
        if is_sparse(model):
            return TurboSampler(TurboNetworks.load(model, model / "tokenizer", device), vae, recipe, device)
        networks = cast(SampledNetworks, recipe.load(model, model / "tokenizer", device))
        return cls(networks, vae, recipe, device)

    def settings_for(self, given: Settings) -> Settings:
        """Return the settings with which the model can run."""
        return given

    @torch.no_grad()
    def sample(
        self, prompts: list[str], seeds: list[int], settings: Settings, images: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sample videos, uint8 [B, F, H, W, 3]. `images` [B, 3, 1, H, W] in [-1, 1] are first frames for image to video."""
        latents = self._noise(seeds, settings)
        first = None if images is None else encode(self.vae, images.to(self.device))
        twice = (
            None
            if images is None or first is None
            else (images.to(self.device).repeat(2, 1, 1, 1, 1), first.repeat(2, 1, 1, 1, 1))
        )
        velocity_of = self.networks.velocity_for([*prompts, *[""] * len(prompts)], *(twice or (None, None)))
        scheduler = self.recipe.schedule(settings.steps, settings.flow_shift)
        for timestep in scheduler.timesteps:
            timesteps = timestep.float().to(self.device).expand(2 * len(latents))
            prompted, unprompted = velocity_of(latents.repeat(2, 1, 1, 1, 1), timesteps).chunk(2)
            velocity = unprompted + settings.guidance * (prompted - unprompted)
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
        return self._decode(self.networks.finish(latents, first))

    def _noise(self, seeds: list[int], settings: Settings) -> torch.Tensor:
        shape = (self.networks.latent_channels, (settings.num_frames - 1) // 4 + 1, settings.height // 16, settings.width // 16)
        noise = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(noise).to(self.device)

    def _decode(self, latents: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(values, device=self.device).view(1, -1, 1, 1, 1) for values in latent_statistics(self.vae))
        video = self.vae.decode(latents * std + mean).sample
        return ((video.permute(0, 2, 3, 4, 1) + 1) * 127.5).round().clamp(0, 255).byte().cpu()


class TurboSampler(Sampler):
    """The networks of wan-tiny-turbo, which always take the same four steps without guidance."""

    def settings_for(self, given: Settings) -> Settings:
        """See `Sampler`."""
        return dataclasses.replace(given, steps=STEPS, guidance=1.0, flow_shift=1.0)

    @torch.no_grad()
    def sample(
        self, prompts: list[str], seeds: list[int], settings: Settings, images: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Sampler`."""
        noise = self._noise(seeds, settings)
        first = None if images is None else encode(self.vae, images.to(self.device))
        velocity_of = self.networks.velocity_for(prompts, images, first)
        clean, given = torch.zeros_like(noise), torch.zeros_like(noise[:, :1, :, :1, :1], dtype=torch.bool)
        if first is not None:
            clean[:, :, :1], given[:, :, 0] = first, True

        def velocity(point: torch.Tensor, step: int) -> torch.Tensor:
            return velocity_of(point, torch.full((len(prompts),), TIMESTEPS[step], device=self.device))

        return self._decode(take_steps(velocity, noise, clean, given))
