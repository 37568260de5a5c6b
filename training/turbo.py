"""Train wan-tiny-turbo: `python -m training --model wan-tiny-turbo`.

wan-tiny's transformer gets SLA and learns to generate in four steps without guidance. The other networks do not change.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from training.checkpoint import FLOAT32_PARTS, write_beside
from training.train_transformer import TransformerTraining, train_transformer
from training.turbo_networks import TurboNetworks, write_config
from training.turbo_pairs import load_pairs, make_pairs

PAIR_SECONDS = 900.0
SECONDS = 2400.0
OPTIONS = TransformerTraining(learning_rate=1e-3, warmup_steps=30, compiled=True)

logger = logging.getLogger(__name__)


def make_turbo(base: Path, work: Path, output: Path, seconds: float, device: str, continue_from: Path | None = None) -> None:
    """Train from `base`, wan-tiny's folder, and write the checkpoint. Stages with a result in `work` are not repeated.

    If `continue_from` is given, train the transformer of this wan-tiny-turbo checkpoint further, with the pairs in `work`.
    """
    pairs, parts = work / "pairs", work / "parts"
    if not pairs.exists():
        make_pairs(base, pairs, PAIR_SECONDS, device)
    if continue_from or not parts.exists():
        networks = TurboNetworks.load(continue_from or base, base / "tokenizer", device)
        train_transformer(networks, load_pairs(pairs), parts, dataclasses.replace(OPTIONS, seconds=seconds), device)
    assemble_turbo(parts, base, output)
    logger.info("the checkpoint is in %s; score it with: python -m training.evaluate --model %s", output, output)


def assemble_turbo(parts: Path, base: Path, target: Path) -> None:
    """Write the checkpoint. The transformer's configuration describes its sparse attention."""
    networks = TurboNetworks.load(parts, base / "tokenizer", "cpu")
    write_beside(base, networks.learned, target, "WanPipeline", (*FLOAT32_PARTS, "proj_l"), expand_timesteps=True)
    write_config(target / "transformer")
