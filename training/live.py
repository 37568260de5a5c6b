"""Train wan-live-tiny: `python -m training --model wan-live-tiny`.

wan-tiny's transformer learns to generate block by block and to follow actions. The other networks do not change.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from pathlib import Path

from training.checkpoint import write_beside
from training.fast_vae import speed_up
from training.latents import Bucket, LatentCache, World
from training.live_networks import LiveNetworks, transformer_config
from training.live_world import ACTIONS, render_story, sample_story
from training.train_transformer import TransformerTraining, train_transformer
from training.wan_vae import WAN_AUTOENCODER

SECONDS = 2700.0
BLOCKS = 9
BUCKET = Bucket(width=96, height=96, num_frames=1 + 4 * (BLOCKS - 1), share=1.0, batch=32, clips=2048)
OPTIONS = TransformerTraining(learning_rate=1e-3, refresh_every=16, compiled=True)  # 1.3 s per step instead of 2.0, measured

logger = logging.getLogger(__name__)


def make_live(base: Path, work: Path, output: Path, seconds: float, device: str) -> None:
    """Train from `base`, wan-tiny's folder, if `work` has no result, and write the checkpoint."""
    parts = work / "parts"
    if not parts.exists():
        vae = WAN_AUTOENCODER.load(base / "vae").to(device).eval()
        speed_up(vae)
        world = World(
            sample=lambda rng: sample_story(rng, BLOCKS), render=lambda story, size: render_story(story, size.width, size.height)
        )
        cache = LatentCache(vae, BUCKET, random.Random(3), device, world)
        networks = LiveNetworks.load(base, base / "tokenizer", device)
        parts.parent.mkdir(parents=True, exist_ok=True)
        train_transformer(networks, [cache], parts, dataclasses.replace(OPTIONS, seconds=seconds), device)
    assemble_live(parts, base, output)
    logger.info("the checkpoint is in %s; score it with: python -m training.evaluate_live", output)


def assemble_live(parts: Path, base: Path, target: Path) -> None:
    """Write the checkpoint. The transformer's configuration describes its blocks."""
    networks = LiveNetworks.load(parts, base / "tokenizer", "cpu")
    causal = ["diffusers", "CausalWanTransformer3DModel"]
    write_beside(base, networks.learned, target, "WanCausalDMDPipeline", transformer=causal)
    path = target / "transformer/config.json"
    config = json.loads(path.read_text("utf-8")) | transformer_config(networks.learned, BLOCKS, list(ACTIONS))
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
