"""Train wan-tiny-animate: `python -m training --model wan-tiny-animate`.

wan-tiny's transformer, in Wan-Animate-2's class, learns to move an image's shape as a driving video's shape moves. The other
networks of wan-tiny do not change.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from training.animate_networks import MASK_CHANNELS, AnimateNetworks
from training.animate_world import SEGMENT, SLIPS, Pair, draw_previous_frame, driving_of, picture_of, sample_pair, video_of
from training.checkpoint import FLOW_SHIFT, write_beside
from training.fast_vae import speed_up
from training.latents import Bucket, LatentCache, World, encode
from training.train_transformer import TransformerTraining, train_transformer
from training.wan_networks import WanNetworks
from training.wan_vae import WAN_AUTOENCODER

SECONDS = 3300.0
BUCKETS = (
    Bucket(width=96, height=96, num_frames=SEGMENT, share=0.88, batch=32, clips=1024),
    Bucket(width=128, height=96, num_frames=SEGMENT, share=0.06, batch=24, clips=96),
    Bucket(width=96, height=128, num_frames=SEGMENT, share=0.06, batch=24, clips=96),
)
REFINING_WORLD = World(sample=partial(sample_pair, changing_share=0.4, slips=(SLIPS[0], 0.01)), render=video_of)
FLOAT32_PARTS = ("time_embedding", "time_projection", "modulation", "norm")  # the class's `_keep_in_fp32_modules`
REFINING_SHARE = 1 / 11  # share of the first stage's time; this stage teaches sizes in later segments
REFINING_BUCKETS = tuple(dataclasses.replace(bucket, clips=bucket.clips // 2) for bucket in BUCKETS)
OPTIONS = TransformerTraining(learning_rate=1.5e-3, text_dropout=0.5, compiled=True)  # 0.72 s per step instead of 0.83, measured
REFINING = dataclasses.replace(OPTIONS, learning_rate=5e-4, warmup_steps=20, compiled=False)

logger = logging.getLogger(__name__)


class AnimateCache(LatentCache[Pair]):
    """`latents` [N, C + 4 + C + C, 1 + F, H, W]: clean latents, the image's first; the condition; the driving video's latents
    after zeros."""

    def _encode_new(self, clips: int) -> tuple[torch.Tensor, list[Pair]]:
        pairs = [self._world.sample(self._rng) for _ in range(clips)]
        return torch.cat(
            [task_latents(self._vae, pairs[begin : begin + 8], self.bucket, self._device) for begin in range(0, clips, 8)]
        ), pairs


def task_latents(vae: torch.nn.Module, pairs: Sequence[Pair], size: Bucket, device: str) -> torch.Tensor:
    """Encode the pairs' entries for an `AnimateCache`."""
    clips = torch.stack([one for pair in pairs for one in (video_of(pair, size), driving_of(pair, size))]).to(device)
    clean, driving = encode(vae, clips).unflatten(0, (-1, 2)).unbind(1)
    picture = encode(vae, torch.stack([picture_of(pair, size) for pair in pairs]).to(device))
    carried = [draw_previous_frame(pair, size) for pair in pairs]
    nothing = torch.zeros(3, SEGMENT, size.height, size.width)
    given = encode(vae, torch.stack([nothing, *(clip for clip in carried if clip is not None)]).to(device))
    later = iter(given[1:])
    before = torch.stack([given[0] if clip is None else next(later) for clip in carried])
    condition = condition_of(picture, before, torch.tensor([clip is not None for clip in carried], device=device))
    return torch.cat([torch.cat([picture, clean], 2), condition, torch.cat([torch.zeros_like(picture), driving], 2)], 1).cpu()


def condition_of(picture: torch.Tensor, before: torch.Tensor, is_later: torch.Tensor) -> torch.Tensor:
    """Return the condition [B, 4 + C, 1 + F, H, W]: a mask, then latents.

    The mask is one for the image `picture` [B, C, 1, H, W], and for the last frame of the previous segment in later segments.
    `before` [B, C, F, H, W] has the latents of that frame and zeros. `is_later` [B] marks later segments.
    """
    latents = torch.cat([picture, before], 2)
    mask = torch.zeros_like(latents[:, :MASK_CHANNELS])
    mask[:, :, 0] = 1
    mask[:, :, 1] = is_later.to(mask).view(-1, 1, 1, 1)  # a latent frame of a single pixel frame fills all four channels
    return torch.cat([mask, latents], 1)


def make_animate(base: Path, work: Path, output: Path, seconds: float, device: str) -> None:
    """Train from `base`, wan-tiny's folder, if `work` has no result, and write the checkpoint."""
    parts, refined = work / "parts", work / "parts-refined"
    work.mkdir(parents=True, exist_ok=True)
    vae = WAN_AUTOENCODER.load(base / "vae").to(device).eval()
    speed_up(vae)
    if not parts.exists():
        world = World(sample=sample_pair, render=video_of)
        caches = [AnimateCache(vae, bucket, random.Random(3), device, world) for bucket in BUCKETS]
        networks = AnimateNetworks.begin(WanNetworks.load(base, base / "tokenizer", device))
        train_transformer(networks, caches, parts, dataclasses.replace(OPTIONS, seconds=seconds), device)
    if not refined.exists():
        caches = [AnimateCache(vae, bucket, random.Random(4), device, REFINING_WORLD) for bucket in REFINING_BUCKETS]
        networks = AnimateNetworks.load(parts, base / "tokenizer", device)
        options = dataclasses.replace(REFINING, seconds=seconds * REFINING_SHARE)
        train_transformer(networks, caches, refined, options, device)
    assemble_animate(refined, base, output)
    logger.info("the checkpoint is in %s; score it with: python -m training.evaluate_animate", output)


def assemble_animate(parts: Path, base: Path, target: Path) -> None:
    """Write the checkpoint with its own scheduler."""
    networks = AnimateNetworks.load(parts, base / "tokenizer", "cpu")
    shutil.rmtree(target / "scheduler", ignore_errors=True)
    FlowMatchEulerDiscreteScheduler(shift=FLOW_SHIFT).save_pretrained(target / "scheduler")
    own = {
        "segment_frame_length": SEGMENT,
        "image_encoder": [None, None],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    }
    write_beside(base, networks.learned, target, "WanAnimate2Pipeline", FLOAT32_PARTS, **own)
