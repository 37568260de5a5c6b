"""Pairs of noise and the clean latents that wan-tiny makes of it, from which wan-tiny-turbo learns."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from training.detector import detect
from training.fast_vae import speed_up
from training.latents import Bucket, LatentCache, Vae, encode, latent_statistics
from training.prompts import describe
from training.recipes import WAN_TINY
from training.velocity import predict_velocity, run_one_block
from training.wan_networks import WanNetworks
from training.wan_vae import WAN_AUTOENCODER
from training.world import Scene, render, sample_training_scene

STEPS, GUIDANCE, FLOW_SHIFT = 8, 4.0, 3.0  # settings of wan-tiny, whose card has 20 steps
IMAGE_TO_VIDEO = 0.4
MOST_BATCHES = 1000
BATCH = 32  # pairs in a batch of the training
BUCKETS = (
    Bucket(width=96, height=96, num_frames=17, share=0.91, batch=64, clips=64),
    Bucket(width=128, height=96, num_frames=17, share=0.03, batch=32, clips=32),
    Bucket(width=96, height=128, num_frames=17, share=0.03, batch=32, clips=32),
    Bucket(width=96, height=96, num_frames=33, share=0.03, batch=32, clips=32),
)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The prompt of a pair, and whether its first frame is given."""

    prompt: str
    has_image: bool


class PairCache(LatentCache[Asked]):
    """`latents` [N, 2 C, F, H, W]: noise, then the clean latents. `scenes` are what was asked for. Pairs are not replaced."""

    def __init__(self, bucket: Bucket, latents: torch.Tensor, scenes: list[Asked]) -> None:
        self.bucket, self.latents, self.scenes = bucket, latents, scenes

    def refresh(self, clips: int) -> None:
        """Do nothing."""


def make_pairs(base: Path, folder: Path, seconds: float, device: str) -> None:
    """Generate with wan-tiny, in the folder `base`, for `seconds`. Write a file of pairs for each size to `folder`.

    Without a given image, a pair is kept only if the detector reads the look that the prompt states in the first frame.
    """
    networks = WanNetworks.load(base, base / "tokenizer", device)
    vae = WAN_AUTOENCODER.load(base / "vae").to(device).eval()
    speed_up(vae)
    rng, started = random.Random(5), time.monotonic()
    kept: dict[Bucket, list[tuple[torch.Tensor, Asked]]] = {bucket: [] for bucket in BUCKETS}
    compiled = torch.compile(run_one_block, dynamic=False)  # only for the most frequent size: a compilation takes a minute
    order = [*BUCKETS, *rng.choices(BUCKETS, weights=[bucket.share for bucket in BUCKETS], k=MOST_BATCHES)]

    def make(number: int) -> tuple[Bucket, list[tuple[torch.Tensor, Asked]]]:
        bucket = order[number]
        if number >= len(BUCKETS) and time.monotonic() - started > seconds:
            return bucket, []
        run_block = compiled if bucket is BUCKETS[0] else run_one_block
        generator = torch.Generator(device).manual_seed(number)
        pairs = _make_batch(networks, vae, bucket, random.Random(number), generator, run_block)
        logger.info("pairs: kept %d of %d, %.0f s", len(pairs), bucket.batch, time.monotonic() - started)
        return bucket, pairs

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other work, a batch for each core needs much less time than one batch on all cores
    with ThreadPoolExecutor(threads) as pool:
        for bucket, pairs in pool.map(make, range(len(order))):
            kept[bucket] += pairs
    torch.set_num_threads(threads)
    folder.mkdir(parents=True)
    for number, pairs in enumerate(kept.values()):
        asked = [dataclasses.astuple(one) for _, one in pairs]
        torch.save({"latents": torch.stack([latents for latents, _ in pairs]), "asked": asked}, folder / f"{number}.pt")


def load_pairs(folder: Path) -> list[PairCache]:
    """Load the pairs that `make_pairs` wrote."""
    caches = []
    for number, bucket in enumerate(BUCKETS):
        saved = torch.load(folder / f"{number}.pt", weights_only=True)
        asked = [Asked(prompt=prompt, has_image=has_image) for prompt, has_image in saved["asked"]]
        size = dataclasses.replace(bucket, batch=min(BATCH, len(asked)))
        caches.append(PairCache(size, saved["latents"].float(), asked))
    return caches


@torch.no_grad()
def _make_batch(
    networks: WanNetworks, vae: Vae, bucket: Bucket, rng: random.Random, generator: torch.Generator, run_block: Callable
) -> list[tuple[torch.Tensor, Asked]]:
    """Generate a batch, all from images or none, and return the pairs to keep."""
    scenes = [sample_training_scene(rng) for _ in range(bucket.batch)]
    prompts, device = [describe(scene, rng) for scene in scenes], generator.device
    shape = networks.latent_channels, (bucket.num_frames - 1) // 4 + 1, bucket.height // 16, bucket.width // 16
    noise = torch.randn(bucket.batch, *shape, generator=generator, device=device)
    first = None
    if rng.random() < IMAGE_TO_VIDEO:
        images = [render(scene, bucket.num_frames, bucket.width, bucket.height)[:, :1] for scene in scenes]
        first = encode(vae, torch.stack(images).to(device))
    clean = _generate(networks, noise, prompts, first, run_block)
    shown = [True] * len(scenes) if first is not None else _shows(vae, clean, scenes)
    return [
        (torch.cat([noise[index], clean[index]]).half().cpu(), Asked(prompt=prompt, has_image=first is not None))
        for index, prompt in enumerate(prompts)
        if shown[index]
    ]


def _generate(
    networks: WanNetworks, noise: torch.Tensor, prompts: list[str], first: torch.Tensor | None, run_block: Callable
) -> torch.Tensor:
    """Return the clean latents of wan-tiny, with guidance."""
    text, bias = networks.text.encode([*prompts, *[""] * len(prompts)])
    scheduler, latents = WAN_TINY.schedule(STEPS, FLOW_SHIFT), noise
    for timestep in scheduler.timesteps:
        timesteps = timestep.float().to(noise.device).expand(2 * len(noise))
        first_timesteps = timesteps if first is None else torch.zeros_like(timesteps)
        twice = networks.finish(latents, first).repeat(2, 1, 1, 1, 1)
        both = predict_velocity(networks.learned, twice, timesteps, first_timesteps, text, bias, run_block=run_block)
        prompted, unprompted = both.chunk(2)
        velocity = unprompted + GUIDANCE * (prompted - unprompted)
        latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    return networks.finish(latents, first)


def _shows(vae: Vae, clean: torch.Tensor, scenes: list[Scene]) -> list[bool]:
    """Return whether the first frame of each video shows the look of its scene. The first frame alone is fast to decode."""
    mean, std = (torch.tensor(value, device=clean.device).view(1, -1, 1, 1, 1) for value in latent_statistics(vae))
    frames = vae.decode(clean[:, :, :1] * std + mean).sample
    seen = [detect(video) for video in ((frames.permute(0, 2, 3, 4, 1) + 1) * 127.5).round().clamp(0, 255).byte().cpu()]
    return [
        all(getattr(found, name) == getattr(scene, name) for name in ("colour", "shape", "background"))
        for found, scene in zip(seen, scenes, strict=True)
    ]
