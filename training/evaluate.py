"""Score a checkpoint on held-out (colour, shape, motion) triples with the detector, through diffusers' own pipelines.

python -m training.evaluate --model models/wan-tiny --videos 200 --json scores.json
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

import numpy as np
import torch
from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline
from PIL import Image

from training.detector import Detection, detect
from training.model_configs import FPS
from training.prompts import describe
from training.world import Scene, held_out_triples, render, sample_scene

log = logging.getLogger(__name__)

PROPERTIES = ("colour", "shape", "motion", "background")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to sample: the preset's own values."""

    width: int = 96
    height: int = 96
    num_frames: int = 17
    steps: int = 20
    guidance: float = 4.0
    flow_shift: float = 3.0
    batch: int = 10
    seed: int = 7


def evaluate_text_to_video(pipeline: WanPipeline, videos: int, settings: Settings) -> dict[str, float]:
    """Share of held-out videos in which the detector reads each property as the prompt said it."""
    rng = random.Random(settings.seed)
    scenes = _held_out_scenes(rng, videos)
    detections = []
    for start in range(0, videos, settings.batch):
        batch = scenes[start : start + settings.batch]
        frames = pipeline(
            [describe(scene, rng) for scene in batch],
            negative_prompt=[""] * len(batch),
            generator=[torch.Generator().manual_seed(settings.seed + start + offset) for offset in range(len(batch))],
            **_arguments(settings),
        ).frames
        detections += [detect(_to_bytes(video)) for video in frames]
        log.info("text to video: %d of %d", len(detections), videos)
    return _shares(scenes, detections)


def evaluate_image_to_video(pipeline: WanImageToVideoPipeline, videos: int, settings: Settings) -> dict[str, float]:
    """Shares as above, and the first frame's mean and least PSNR in dB against the picture that was given."""
    rng = random.Random(settings.seed + 1)
    scenes, detections, fidelity = _held_out_scenes(rng, videos), [], []
    for index, scene in enumerate(scenes):
        picture = _first_frame(scene, settings)
        video = pipeline(
            Image.fromarray(picture),
            describe(scene, rng),
            negative_prompt="",
            generator=torch.Generator().manual_seed(settings.seed + index),
            **_arguments(settings),
        ).frames[0]
        detections.append(detect(_to_bytes(video)))
        fidelity.append(_psnr(video[0], picture / 255.0))
        if (index + 1) % 10 == 0:
            log.info("image to video: %d of %d", index + 1, videos)
    scores = {f"first_frame_psnr_{name}": function(fidelity) for name, function in (("mean", np.mean), ("least", np.min))}
    return _shares(scenes, detections) | {name: round(float(value), 2) for name, value in scores.items()}


def _held_out_scenes(rng: random.Random, count: int) -> list[Scene]:
    triples = sorted(held_out_triples())
    return [sample_scene(rng, triples[index % len(triples)]) for index in range(count)]


def _arguments(settings: Settings) -> dict:
    return dict(
        width=settings.width,
        height=settings.height,
        num_frames=settings.num_frames,
        num_inference_steps=settings.steps,
        guidance_scale=settings.guidance,
    )


def _first_frame(scene: Scene, settings: Settings) -> np.ndarray:
    """uint8 [H, W, 3]."""
    video = render(scene, settings.num_frames, settings.width, settings.height)
    return ((video[:, 0].permute(1, 2, 0) + 1) * 127.5).round().byte().numpy()


def _to_bytes(video: np.ndarray) -> torch.Tensor:
    """uint8 [F, H, W, 3] from [0, 1]."""
    return torch.from_numpy(np.round(np.asarray(video) * 255).astype(np.uint8))


def _psnr(image: np.ndarray, reference: np.ndarray) -> float:
    """In dB, for pixels in [0, 1]."""
    return -10 * math.log10(max(float(np.square(image - reference).mean()), 1e-10))


def _shares(scenes: list[Scene], detections: list[Detection]) -> dict[str, float]:
    pairs = list(zip(scenes, detections, strict=True))
    return {
        name: round(sum(getattr(scene, name) == getattr(seen, name) for scene, seen in pairs) / len(pairs), 4)
        for name in PROPERTIES
    }


def load(model: Path, settings: Settings) -> tuple[WanPipeline, WanImageToVideoPipeline]:
    pipeline = WanPipeline.from_pretrained(model, torch_dtype=torch.float32)
    pipeline.scheduler = UniPCMultistepScheduler.from_config(pipeline.scheduler.config, flow_shift=settings.flow_shift)
    image_pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=True)
    for each in (pipeline, image_pipeline):
        each.set_progress_bar_config(disable=True)
        each.to("cuda" if torch.cuda.is_available() else "cpu")
    return pipeline, image_pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/wan-tiny"))
    parser.add_argument("--videos", type=int, default=200, help="of each task")
    parser.add_argument("--json", type=Path, help="write the scores there too")
    for field in dataclasses.fields(Settings):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    model, videos, target = (arguments.pop(name) for name in ("model", "videos", "json"))
    settings = Settings(**arguments)
    text_pipeline, image_pipeline = load(model, settings)
    scores = {
        "videos": videos,
        "fps": FPS,
        "settings": dataclasses.asdict(settings),
        "text_to_video": evaluate_text_to_video(text_pipeline, videos, settings),
        "image_to_video": evaluate_image_to_video(image_pipeline, videos, settings),
    }
    text = json.dumps(scores, indent=2)
    sys.stdout.write(text + "\n")
    if target:
        target.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
