"""A cache of normalised latents with their scenes, from which the transformer learns."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from diffusers import AutoencoderKLHunyuanVideo15, AutoencoderKLLTX2Video, AutoencoderKLWan

from training.world import Scene, render, sample_training_scene

Vae = AutoencoderKLWan | AutoencoderKLHunyuanVideo15 | AutoencoderKLLTX2Video


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A video size of the training: its share of the steps, its batch, and the number of encoded clips in the cache."""

    width: int
    height: int
    num_frames: int
    share: float
    batch: int
    clips: int


Shown = TypeVar("Shown")


@dataclasses.dataclass(frozen=True, kw_only=True)
class World(Generic[Shown]):
    """A source of clips: `sample` draws a random scene, and `render` draws its video in a bucket's size, [C, F, H, W]."""

    sample: Callable[[random.Random], Shown]
    render: Callable[[Shown, Bucket], torch.Tensor]


def scenes_of_world(has_speed: bool, has_sound: bool = False) -> World[Scene]:
    """Return the world of single scenes."""
    return World(
        sample=lambda rng: sample_training_scene(rng, has_speed, has_sound),
        render=lambda scene, size: render(scene, size.num_frames, size.width, size.height),
    )


class LatentCache(Generic[Shown]):
    """`latents` [N, C, F, H, W] float32 with about zero mean and unit variance, and their N `scenes`."""

    def __init__(self, vae: Vae, bucket: Bucket, rng: random.Random, device: str, world: World[Shown]) -> None:
        self._vae, self.bucket, self._rng, self._device, self._world = vae, bucket, rng, device, world
        self._oldest = 0
        self.scenes: list[Shown] = []
        parts = []
        for start in range(0, bucket.clips, 32):
            latents, scenes = self._encode_new(min(32, bucket.clips - start))
            parts.append(latents)
            self.scenes.extend(scenes)
        self.latents = torch.cat(parts)

    def refresh(self, clips: int) -> None:
        """Replace the `clips` oldest entries with new scenes."""
        latents, scenes = self._encode_new(clips)
        for offset, scene in enumerate(scenes):
            index = (self._oldest + offset) % len(self.scenes)
            self.latents[index], self.scenes[index] = latents[offset], scene
        self._oldest = (self._oldest + clips) % len(self.scenes)

    def _encode_new(self, clips: int) -> tuple[torch.Tensor, list[Shown]]:
        scenes = [self._world.sample(self._rng) for _ in range(clips)]
        videos = torch.stack([self._world.render(scene, self.bucket) for scene in scenes])
        parts = [encode(self._vae, part.to(self._device)).cpu() for part in videos.split(8)]
        return torch.cat(parts), scenes


@torch.no_grad()
def encode(vae: Vae, video: torch.Tensor) -> torch.Tensor:
    """Encode videos [B, 3, F, H, W] in [-1, 1] to normalised latents [B, C, F, H, W]."""
    mean, std = (torch.tensor(value, device=video.device).view(1, -1, 1, 1, 1) for value in latent_statistics(vae))
    return (vae.encode(video).latent_dist.mode() - mean) / std


def latent_statistics(vae: Vae) -> tuple[list[float], list[float]]:
    """Return the mean and spread for normalisation: one per channel, or one for all if the class has a single factor."""
    if isinstance(vae, AutoencoderKLHunyuanVideo15):
        return [0.0], [1 / vae.config.scaling_factor]
    if isinstance(vae, AutoencoderKLLTX2Video):
        return vae.latents_mean.tolist(), vae.latents_std.tolist()
    return vae.config.latents_mean, vae.config.latents_std
