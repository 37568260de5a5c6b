"""Score a checkpoint on held-out (colour, shape, motion) triples with the detector.

python -m training.evaluate --model models/wan-tiny --videos 200 --json models/wan-tiny/scores.json

If a model's prompts can contain a speed, the speed is scored too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import random
import sys
from pathlib import Path

import torch

from training.detector import Detection, detect
from training.prompts import describe
from training.sampling import Sampler, Settings
from training.world import Scene, held_out_triples, render, sample_scene, sample_speed

logger = logging.getLogger(__name__)

PROPERTIES = ("colour", "shape", "motion", "background", "speed")


def evaluate_text_to_video(sampler: Sampler, videos: int, settings: Settings) -> dict[str, float]:
    """Return the share of held-out videos in which the detector reads each property that the prompt states."""
    rng = random.Random(settings.seed)
    scenes, detections = held_out_scenes(rng, videos, sampler.recipe.has_speed), []
    for start in range(0, videos, settings.batch):
        batch = scenes[start : start + settings.batch]
        frames = sampler.sample([describe(scene, rng) for scene in batch], _seeds(settings, start, batch), settings)
        detections += [detect(video) for video in frames]
        logger.info("text to video: %d of %d", len(detections), videos)
    return shares(scenes, detections)


def evaluate_image_to_video(sampler: Sampler, videos: int, settings: Settings) -> dict[str, float]:
    """Return the shares for image to video, and the first frame's mean and lowest PSNR in dB against the given image."""
    rng = random.Random(settings.seed + 1)
    scenes, detections, fidelity = held_out_scenes(rng, videos, sampler.recipe.has_speed), [], []
    for start in range(0, videos, settings.batch):
        batch = scenes[start : start + settings.batch]
        images = torch.stack([_first_frame(scene, settings) for scene in batch])
        prompts = [describe(scene, rng) for scene in batch]
        frames = sampler.sample(prompts, _seeds(settings, start, batch), settings, images)
        detections += [detect(video) for video in frames]
        fidelity += [_psnr(video[0], image) for video, image in zip(frames, images, strict=True)]
        logger.info("image to video: %d of %d", len(detections), videos)
    psnr = {"first_frame_psnr_mean": sum(fidelity) / len(fidelity), "first_frame_psnr_least": min(fidelity)}
    return shares(scenes, detections) | {name: round(value, 2) for name, value in psnr.items()}


def held_out_scenes(rng: random.Random, count: int, has_speed: bool) -> list[Scene]:
    """Draw scenes that are held out of training, some with a speed if the model supports it."""
    triples = sorted(held_out_triples())
    chosen = [triples[index % len(triples)] for index in range(count)]
    return [sample_scene(rng, triple, sample_speed(rng, triple[2]) if has_speed else None) for triple in chosen]


def _seeds(settings: Settings, start: int, batch: list[Scene]) -> list[int]:
    return [settings.seed + start + offset for offset in range(len(batch))]


def _first_frame(scene: Scene, settings: Settings) -> torch.Tensor:
    """Draw the first frame [3, 1, H, W] in [-1, 1]."""
    return render(scene, settings.num_frames, settings.width, settings.height)[:, :1]


def _psnr(frame: torch.Tensor, image: torch.Tensor) -> float:
    """Return the PSNR in dB of a frame uint8 [H, W, 3] against an image [3, 1, H, W] in [-1, 1]."""
    difference = frame.float() - (image[:, 0].permute(1, 2, 0) + 1) * 127.5
    return 10 * math.log10(255**2 / max(difference.square().mean().item(), 1e-9))


def shares(scenes: list[Scene], detections: list[Detection]) -> dict[str, float]:
    """Return the share of scenes in which each stated property was detected."""
    found = {}
    for name in PROPERTIES:
        pairs = [(getattr(scene, name), getattr(seen, name)) for scene, seen in zip(scenes, detections, strict=True)]
        asked = [(wanted, found) for wanted, found in pairs if wanted is not None]
        if asked:
            found[name] = round(sum(wanted == found for wanted, found in asked) / len(asked), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/wan-tiny"))
    parser.add_argument("--videos", type=int, default=200, help="videos of each task")
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
    for field in dataclasses.fields(Settings):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    model, videos, target = (arguments.pop(name) for name in ("model", "videos", "json"))
    sampler = Sampler.load(model)
    settings = sampler.settings_for(Settings(**arguments))
    scores = {
        "videos_of_each_task": videos,
        "settings": dataclasses.asdict(settings),
        "text_to_video": evaluate_text_to_video(sampler, videos, settings),
        "image_to_video": evaluate_image_to_video(sampler, videos, settings),
    }
    text = json.dumps(scores, indent=2)
    sys.stdout.write(text + "\n")
    if target:
        target.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
