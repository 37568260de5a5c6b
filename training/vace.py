"""Train wan-tiny-vace: `python -m training --model wan-tiny-vace`.

Control blocks beside wan-tiny's layers learn to use edges, parts of a video, keyframes and a reference image. These layers are
trained too. wan-tiny's text encoder and autoencoder do not change. `--continue-from models/wan-tiny-vace` continues the training.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from backend.models.wan_vace.conditions import mask_channels
from backend.schemas.geometry import Geometry
from training.checkpoint import write_beside
from training.fast_vae import speed_up
from training.latents import Bucket, LatentCache, World, encode
from training.train_transformer import TransformerTraining, train_transformer
from training.vace_networks import VaceNetworks
from training.vace_world import (
    Task,
    reference_of,
    sample_reference,
    sample_reference_task,
    sample_task,
    source_of,
    video_of,
)
from training.wan_networks import WanNetworks
from training.wan_vae import WAN_AUTOENCODER
from training.world import COLOURS, SHAPES

SECONDS = 3000.0
BUCKETS = (
    Bucket(width=96, height=96, num_frames=17, share=0.36, batch=32, clips=384),
    Bucket(width=128, height=96, num_frames=17, share=0.02, batch=24, clips=32),
    Bucket(width=96, height=128, num_frames=17, share=0.02, batch=24, clips=32),
)
REFERENCE_BUCKETS = (  # with one more latent frame, for the image
    Bucket(width=96, height=96, num_frames=17, share=0.56, batch=32, clips=384),
    Bucket(width=128, height=96, num_frames=17, share=0.02, batch=24, clips=32),
    Bucket(width=96, height=128, num_frames=17, share=0.02, batch=24, clips=32),
)
SPATIAL_SCALE = 16
PICTURES = 48  # stored reference images of each colour and shape
OPTIONS = TransformerTraining(learning_rate=1e-3, image_to_video=0.0, refresh_every=16, warmup_steps=60)

logger = logging.getLogger(__name__)


class ControlCache(LatentCache[Task]):
    """`latents` [N, C + 2 C + 256, F, H, W]: the clip's latents, then the inputs of the control blocks."""

    def _encode_new(self, clips: int) -> tuple[torch.Tensor, list[Task]]:
        tasks = [self._world.sample(self._rng) for _ in range(clips)]
        return torch.cat(
            [shown_latents(self._vae, tasks[begin : begin + 4], self.bucket, self._device) for begin in range(0, clips, 4)]
        ), tasks


class ReferenceCache(ControlCache):
    """A cache of tasks with reference images.

    An image takes far less time than a clip. So whenever some clips are replaced, all clips get other images, from a store of
    `PICTURES` for each colour and shape.
    """

    def __init__(self, vae: torch.nn.Module, bucket: Bucket, rng: random.Random, device: str, world: World[Task]) -> None:
        super().__init__(vae, bucket, rng, device, world)
        count = max(8, PICTURES * bucket.clips // REFERENCE_BUCKETS[0].clips)
        self._pictures = {look: self._encoded(look, count) for look in itertools.product(COLOURS, SHAPES) if look[0] != "white"}

    def refresh(self, clips: int) -> None:
        """See `LatentCache`."""
        super().refresh(max(1, clips // 4))
        channels = next(iter(self._pictures.values())).shape[1]
        for place, task in enumerate(self.scenes):
            picture = self._rng.choice(self._pictures[task.scene.colour, task.scene.shape])
            self.latents[place, : 2 * channels, :1] = torch.cat([picture, picture])

    def _encoded(self, look: tuple[str, str], count: int) -> torch.Tensor:
        """Return the latents of `count` images, [count, C, 1, H, W]."""
        scene = dataclasses.replace(self.scenes[0].scene, colour=look[0], shape=look[1])
        tasks = [Task(scene=scene, use="reference", reference=sample_reference(self._rng)) for _ in range(count)]
        return picture_latents(self._vae, tasks, self.bucket, self._device)


def picture_latents(vae: torch.nn.Module, tasks: Sequence[Task], size: Bucket, device: str) -> torch.Tensor:
    """Return the latents of the tasks' reference images, [tasks, C, 1, H, W]."""
    pictures = torch.stack([torch.from_numpy(reference_of(task, size)).permute(2, 0, 1)[:, None] for task in tasks])
    return encode(vae, (pictures.float() / 127.5 - 1).to(device)).cpu()


def shown_latents(vae: torch.nn.Module, tasks: Sequence[Task], size: Bucket, device: str) -> torch.Tensor:
    """Encode the tasks' entries for a `ControlCache`, [tasks, C + 2 C + 256, F, H, W].

    Either all tasks have a reference image, whose latent frame comes first, or none has.
    """
    sources = [source_of(task, size) for task in tasks]
    frames = torch.stack([torch.from_numpy(source.frames).permute(3, 0, 1, 2).float() / 127.5 - 1 for source in sources])
    is_new = torch.stack([torch.from_numpy(source.is_new)[None] for source in sources])
    videos = torch.stack([video_of(task, size) for task in tasks])
    clip, stays, new = encode(vae, torch.cat([videos, frames * ~is_new, frames * is_new]).to(device)).cpu().chunk(3)
    masks = [torch.from_numpy(mask_channels(geometry_of(size), source)) for source in sources]
    shown = torch.cat([clip, stays, new, torch.cat(masks)], 1)
    if tasks[0].reference is None:
        return shown
    references = picture_latents(vae, tasks, size, device)
    blank = torch.zeros(len(tasks), shown.shape[1] - 2 * references.shape[1], *references.shape[2:])
    return torch.cat([torch.cat([references, references, blank], 1), shown], 2)


def geometry_of(size: Bucket) -> Geometry:
    """Return the geometry of videos of this size in wan-tiny."""
    return Geometry(width=size.width, height=size.height, num_frames=size.num_frames, spatial_scale=SPATIAL_SCALE)


def make_vace(
    base: Path,
    work: Path,
    output: Path,
    seconds: float,
    device: str,
    continue_from: Path | None = None,
) -> None:
    """Train from `base`, wan-tiny's folder, or from an earlier checkpoint, if `work` has no result, and write the checkpoint."""
    parts = work / "parts"
    if not parts.exists():
        vae = WAN_AUTOENCODER.load(base / "vae").to(device).eval()
        speed_up(vae)
        caches = [
            cache(vae, bucket, random.Random(3), device, World(sample=sample, render=video_of))
            for cache, sample, buckets in (
                (ControlCache, sample_task, BUCKETS),
                (ReferenceCache, sample_reference_task, REFERENCE_BUCKETS),
            )
            for bucket in buckets
        ]
        if continue_from:
            networks = VaceNetworks.load(continue_from, base / "tokenizer", device)
        else:
            networks = VaceNetworks.begin(WanNetworks.load(base, base / "tokenizer", device), SPATIAL_SCALE**2)
        parts.parent.mkdir(parents=True, exist_ok=True)
        train_transformer(networks, caches, parts, dataclasses.replace(OPTIONS, seconds=seconds), device)
    assemble_vace(parts, base, output)
    logger.info("the checkpoint is in %s; score it with: python -m training.evaluate_vace", output)


def assemble_vace(parts: Path, base: Path, target: Path) -> None:
    """Write the checkpoint."""
    networks = VaceNetworks.load(parts, base / "tokenizer", "cpu")
    write_beside(base, networks.learned, target, "WanVACEPipeline", transformer_2=[None, None])
