"""Make the demo checkpoint from nothing: `python -m training`. A stage whose result is in the work folder is not repeated.

With `--continue-from models/wan-tiny` it trains an existing checkpoint's transformer further and keeps its autoencoder.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from transformers import AutoTokenizer, UMT5EncoderModel

from training.checkpoint import assemble
from training.fast_vae import speed_up
from training.latents import BUCKETS, LatentCache
from training.tokenizer import make_tokenizer
from training.train_text_encoder import train_text_encoder
from training.train_transformer import TextAndTransformer, TransformerTraining, train_transformer
from training.train_vae import REFINING_RATE, VaeTraining, refine_decoder, train_vae

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Where the parts go and how long each stage may take, in seconds."""

    work: Path
    output: Path
    vae_seconds: float
    text_seconds: float
    transformer_seconds: float
    device: str
    refine_seconds: float
    continue_from: Path | None


def make(plan: Plan) -> None:
    """Run the stages that have no result yet, then write the checkpoint to `plan.output`."""
    tokenizer, vae, text_encoder, parts = (plan.work / name for name in ("tokenizer", "vae", "text_encoder", "parts"))
    for name in ("tokenizer", "vae", "text_encoder") if plan.continue_from else ():
        shutil.copytree(plan.continue_from / name, plan.work / name, dirs_exist_ok=True)
    if not tokenizer.exists():
        make_tokenizer(tokenizer)
    if not vae.exists():
        train_vae(vae, VaeTraining(seconds=plan.vae_seconds), plan.device)
    if not text_encoder.exists():
        encoder, accuracy = train_text_encoder(AutoTokenizer.from_pretrained(tokenizer), plan.text_seconds, plan.device)
        logger.info("text encoder: read right %s", accuracy)
        encoder.save_pretrained(text_encoder)
    if not parts.exists():
        _train_transformer(plan, parts)
    refined = plan.work / "vae-refined"
    if not refined.exists():
        options = VaeTraining(seconds=plan.refine_seconds, learning_rate=REFINING_RATE)
        refine_decoder(AutoencoderKLWan.from_pretrained(vae), refined, options, plan.device)
    assemble(parts, refined, tokenizer, plan.output)
    logger.info("the checkpoint is in %s; score it with: python -m training.evaluate --model %s", plan.output, plan.output)


def _train_transformer(plan: Plan, parts: Path) -> None:
    vae = AutoencoderKLWan.from_pretrained(plan.work / "vae").to(plan.device).eval()
    speed_up(vae)
    caches = [LatentCache(vae, bucket, random.Random(3), plan.device) for bucket in BUCKETS]
    tokenizer = AutoTokenizer.from_pretrained(plan.work / "tokenizer")
    if plan.continue_from:
        networks = TextAndTransformer.load(plan.continue_from, tokenizer, plan.device)
    else:
        text_encoder = UMT5EncoderModel.from_pretrained(plan.work / "text_encoder").to(plan.device)
        networks = TextAndTransformer.create(text_encoder, tokenizer, plan.device)
    train_transformer(networks, caches, parts, TransformerTraining(seconds=plan.transformer_seconds), plan.device)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/wan-tiny"), help="where the parts are kept")
    parser.add_argument("--output", type=Path, default=Path("models/wan-tiny"), help="where the checkpoint goes")
    parser.add_argument("--vae-seconds", type=float, default=780)
    parser.add_argument("--text-seconds", type=float, default=90)
    parser.add_argument("--transformer-seconds", type=float, default=1140)
    parser.add_argument("--refine-seconds", type=float, default=200, help="for the decoder, after everything else")
    parser.add_argument("--continue-from", type=Path, help="a checkpoint folder to continue from")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make(Plan(device="cuda" if torch.cuda.is_available() else "cpu", **vars(arguments)))


if __name__ == "__main__":
    main()
