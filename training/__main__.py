"""Train a demo checkpoint: `python -m training`, or `python -m training --model hunyuan-tiny`.

A stage whose result is in the work folder is not repeated. `--continue-from models/wan-tiny` trains an existing checkpoint's
transformer further and keeps its autoencoder.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import shutil
from pathlib import Path

import torch

from training.animate import SECONDS as ANIMATE_SECONDS
from training.animate import make_animate
from training.fast_vae import speed_up
from training.latents import LatentCache, scenes_of_world
from training.live import SECONDS as LIVE_SECONDS
from training.live import make_live
from training.recipe import Recipe, StageSeconds
from training.recipes import RECIPES
from training.train_text_encoder import train_text_encoder
from training.train_transformer import TransformerTraining, train_transformer
from training.train_vae import REFINING_RATE, refine_decoder, train_vae
from training.turbo import SECONDS as TURBO_SECONDS
from training.turbo import make_turbo
from training.vace import SECONDS as VACE_SECONDS
from training.vace import make_vace

ON_WAN_TINY = {  # trained on top of wan-tiny's networks
    "wan-live-tiny": (make_live, LIVE_SECONDS),
    "wan-tiny-vace": (make_vace, VACE_SECONDS),
    "wan-tiny-animate": (make_animate, ANIMATE_SECONDS),
    "wan-tiny-turbo": (make_turbo, TURBO_SECONDS),
}

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The model to train, its folders, and the seconds of each stage."""

    recipe: Recipe
    seconds: StageSeconds
    work: Path
    output: Path
    device: str
    continue_from: Path | None = None
    compiled: bool


def make(plan: Plan) -> None:
    """Run the stages that have no result yet, then write the checkpoint to `plan.output`."""
    recipe, autoencoder = plan.recipe, plan.recipe.autoencoder
    tokenizer, vae, text_encoder, parts = (plan.work / name for name in ("tokenizer", "vae", "text_encoder", "parts"))
    if plan.continue_from is not None:
        for name in ("tokenizer", "vae", "text_encoder"):
            shutil.copytree(plan.continue_from / name, plan.work / name, dirs_exist_ok=True)
    if not tokenizer.exists():
        recipe.make_tokenizer(tokenizer)
    if not vae.exists():
        train_vae(autoencoder, vae, dataclasses.replace(recipe.vae_training, seconds=plan.seconds.vae), plan.device)
    if not text_encoder.exists():
        text, accuracy = train_text_encoder(
            lambda: recipe.create_text(tokenizer, plan.device),
            plan.seconds.text,
            plan.device,
            recipe.text_learning_rate,
            recipe.has_speed,
            recipe.train_sound is not None,
        )
        logger.info("text encoder: read right %s", accuracy)
        text.save(text_encoder)
    if recipe.train_sound and not (plan.work / "sound").exists():
        recipe.train_sound(plan.work / "sound", plan.seconds.sound, plan.device, None)
    if not parts.exists():
        _train_transformer(plan, parts)
    refined = plan.work / "vae-refined"
    if not refined.exists():
        options = dataclasses.replace(recipe.vae_training, seconds=plan.seconds.refine, learning_rate=REFINING_RATE)
        refine_decoder(autoencoder, autoencoder.load(vae), refined, options, plan.device)
    if recipe.train_sound:
        heard = plan.work / "sound-refined"
        if not heard.exists():
            recipe.train_sound(heard, plan.seconds.refine, plan.device, plan.work / "sound")
        shutil.copytree(heard, parts, dirs_exist_ok=True)
    recipe.assemble(parts, refined, tokenizer, plan.output)
    logger.info("the checkpoint is in %s; score it with: python -m training.evaluate --model %s", plan.output, plan.output)


def _train_transformer(plan: Plan, parts: Path) -> None:
    recipe, tokenizer = plan.recipe, plan.work / "tokenizer"
    vae = recipe.autoencoder.load(plan.work / "vae").to(plan.device).eval()
    speed_up(vae)
    world = scenes_of_world(recipe.has_speed, recipe.train_sound is not None)
    caches = [LatentCache(vae, bucket, random.Random(3), plan.device, world) for bucket in recipe.buckets]
    if plan.continue_from:
        networks = recipe.load(plan.continue_from, tokenizer, plan.device)
    else:
        networks = recipe.create(plan.work / "text_encoder", tokenizer, plan.device)
    options = TransformerTraining(seconds=plan.seconds.transformer, compiled=plan.compiled)
    train_transformer(networks, caches, parts, options, plan.device)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*RECIPES, *ON_WAN_TINY], default="wan-tiny")
    parser.add_argument("--work", type=Path, help="folder of the stages' results (build/MODEL)")
    parser.add_argument("--output", type=Path, help="folder of the checkpoint (models/MODEL)")
    stages = [field.name for field in dataclasses.fields(StageSeconds)]
    for stage in stages:
        parser.add_argument(f"--{stage}-seconds", type=float, help="time limit of the stage (the model's default)")
    how = "whether the transformer's layers are compiled, in place of the model's own way"
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, help=how)
    parser.add_argument("--continue-from", type=Path, help="a checkpoint folder to continue from")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if given.model in ON_WAN_TINY:
        train, usual = ON_WAN_TINY[given.model]
        work, output = given.work or Path("build") / given.model, given.output or Path("models") / given.model
        device = "cuda" if torch.cuda.is_available() else "cpu"
        more = {"continue_from": given.continue_from} if given.model in ("wan-tiny-vace", "wan-tiny-turbo") else {}
        return train(Path("models/wan-tiny"), work, output, given.transformer_seconds or usual, device, **more)
    times = {stage: getattr(given, f"{stage}_seconds") for stage in stages}
    recipe = RECIPES[given.model]
    make(
        Plan(
            recipe=recipe,
            seconds=dataclasses.replace(recipe.seconds, **{stage: time for stage, time in times.items() if time is not None}),
            work=given.work or Path("build") / given.model,
            output=given.output or Path("models") / given.model,
            device="cuda" if torch.cuda.is_available() else "cpu",
            continue_from=given.continue_from,
            compiled=recipe.is_compiled if given.compiled is None else given.compiled,
        )
    )


if __name__ == "__main__":
    main()
