"""Make the demo checkpoint from nothing: `python -m training`. A stage whose result is in the work folder is not repeated."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from transformers import AutoTokenizer

from training.checkpoint import assemble
from training.fast_vae import speed_up
from training.latents import BUCKETS, LatentCache
from training.tokenizer import make_tokenizer
from training.train_transformer import TextAndTransformer, TransformerTraining, train_transformer
from training.train_vae import VaeTraining, train_vae

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Where the parts go and how long each stage may take, in seconds."""

    work: Path
    output: Path
    vae_seconds: float
    transformer_seconds: float
    device: str


def make(plan: Plan) -> None:
    """Run the stages that have no result yet, then write the checkpoint to `plan.output`."""
    tokenizer = plan.work / "tokenizer"
    if not tokenizer.exists():
        make_tokenizer(tokenizer)
    vae = plan.work / "vae"
    if not vae.exists():
        train_vae(vae, VaeTraining(seconds=plan.vae_seconds), plan.device)
    parts = plan.work / "parts"
    if not parts.exists():
        _train_transformer(plan, vae, tokenizer, parts)
    assemble(parts, vae, tokenizer, plan.output)
    log.info("the checkpoint is in %s; score it with: python -m training.evaluate --model %s", plan.output, plan.output)


def _train_transformer(plan: Plan, vae_folder: Path, tokenizer_folder: Path, parts: Path) -> None:
    vae = AutoencoderKLWan.from_pretrained(vae_folder).to(plan.device).eval()
    speed_up(vae)
    caches = [LatentCache(vae, bucket, random.Random(3), plan.device) for bucket in BUCKETS]
    networks = TextAndTransformer.create(AutoTokenizer.from_pretrained(tokenizer_folder), plan.device)
    train_transformer(networks, caches, parts, TransformerTraining(seconds=plan.transformer_seconds), plan.device)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/wan-tiny"), help="where the parts are kept")
    parser.add_argument("--output", type=Path, default=Path("models/wan-tiny"), help="where the checkpoint goes")
    parser.add_argument("--vae-seconds", type=float, default=1440)
    parser.add_argument("--transformer-seconds", type=float, default=3600)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make(Plan(device="cuda" if torch.cuda.is_available() else "cpu", **vars(arguments)))


if __name__ == "__main__":
    main()
