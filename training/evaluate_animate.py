"""Score wan-tiny-animate on held-out pairs of an image and a driving video.

python -m training.evaluate_animate --videos 200 --long-videos 50 --json models/wan-tiny-animate/scores.json

The triple of colour, shape and motion of each video was not in the training. The driving shape has another form, colour and
background than the image. Half of the prompts are empty. The others describe the image's scene with a random motion. The detector
reads the video and the correct video, which is drawn.

- `follows`: in at least 90 % of the frames the two centres are within a sixteenth of the side. Also, the detector reads the same
  motion in both: a direction, still, growing or shrinking.
- `near`: the share of frames with such centres. `distance`: the mean distance in pixels.
- `size`: the median ratio of the radii, the larger divided by the smaller.

The bars: follows 0.85, shape and colour 0.9, background 0.95.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from training.animate_sampling import AnimateSampler, AnimateSettings
from training.animate_world import SEGMENT, Pair, driving_clip, picture_of, whole_video
from training.detector import detect, positions
from training.latents import Bucket
from training.prompts import describe
from training.world import COLOURS, MOTIONS, SHAPES, held_out_triples, sample_scene

SIZE = Bucket(width=96, height=96, num_frames=SEGMENT, share=1.0, batch=1, clips=1)
LONG = 3 * (SEGMENT - 1) + 1  # frames of three segments
NEAR = 1 / 16  # share of the shorter side
NEAR_SHARE = 0.9  # share of the frames

logger = logging.getLogger(__name__)


def held_out_pair(number: int, num_frames: int, rng: random.Random, has_bars: bool = False) -> Pair:
    """Draw a pair whose video has the held-out triple with this number."""
    triples = sorted(held_out_triples())
    colour, shape, motion = triples[number % len(triples)]
    picture = sample_scene(rng, (colour, shape, rng.choice(MOTIONS)))
    driving = sample_scene(rng, (_another(colour, COLOURS, rng), _another(shape, SHAPES, rng), motion))
    while driving.background == picture.background:
        driving = sample_scene(rng, driving.triple)
    return Pair(picture=picture, driving=driving, moment=rng.random(), num_frames=num_frames, has_bars=has_bars)


def _another(given: str, all_of_them, rng: random.Random) -> str:
    return rng.choice([one for one in all_of_them if one != given])


def make_video(
    sampler: AnimateSampler, pair: Pair, prompt: str, seed: int, settings: AnimateSettings, size: Bucket = SIZE
) -> torch.Tensor:
    """Sample the model's video for a pair, uint8 [F, H, W, 3]."""
    clip = driving_clip(pair, size)[None, :, : pair.num_frames]
    return sampler.sample(picture_of(pair, size)[None], clip, [prompt], [seed], settings)[0]


def score(video: torch.Tensor, pair: Pair, size: Bucket = SIZE) -> dict[str, Any]:
    """Return the scores of a video by name. `distance` is the mean distance of the centres in pixels, None without a shape."""
    truth = ((whole_video(pair, size)[:, : pair.num_frames].permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255).byte()
    seen, right = detect(video), detect(truth)
    found: dict[str, Any] = {
        name: getattr(seen, name) == getattr(pair.picture, name) for name in ("shape", "colour", "background")
    }
    if seen.colour is None:
        return found | {"follows": False, "near": 0.0, "motion": False, "distance": None, "size": None}
    ours, theirs = positions(video), positions(truth)
    apart = ((ours[:, :2] - theirs[:, :2]) * torch.tensor([size.width, size.height])).norm(dim=1)
    near = float((apart <= NEAR * min(size.width, size.height)).float().mean())
    ratio = (ours[:, 2] / theirs[:, 2]).clamp(min=1e-3)
    return found | {
        "follows": near >= NEAR_SHARE and seen.motion == right.motion,
        "near": near,
        "motion": seen.motion == right.motion,
        "distance": float(apart.mean()),
        "size": float(torch.maximum(ratio, 1 / ratio).median()),
    }


def evaluate(
    sampler: AnimateSampler, pairs: Iterable[Pair], seed: int, settings: AnimateSettings, size: Bucket = SIZE
) -> dict[str, float]:
    """Return the mean scores of the pairs' videos."""
    rng, scores = random.Random(seed), []
    for number, pair in enumerate(pairs):
        prompt = describe(pair.picture, rng) if number % 2 else ""
        scores.append(score(make_video(sampler, pair, prompt, seed + number, settings, size), pair, size))
        if number % 20 == 19:
            logger.info("%d videos", number + 1)
    return {name: _mean([one[name] for one in scores if one[name] is not None]) for name in scores[0]}


def _mean(values: list[float]) -> float:
    return round(sum(values) / max(1, len(values)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/wan-tiny-animate"))
    parser.add_argument("--videos", type=int, default=200, help="videos of one segment")
    parser.add_argument("--long-videos", type=int, default=50, help="videos of three segments, and of clips with bars")
    parser.add_argument("--width", type=int, default=SIZE.width)
    parser.add_argument("--height", type=int, default=SIZE.height)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=AnimateSettings.steps)
    parser.add_argument("--flow-shift", type=float, default=AnimateSettings.flow_shift)
    parser.add_argument("--solver", choices=("euler", "unipc"), default=AnimateSettings.solver)
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = AnimateSettings(steps=given.steps, flow_shift=given.flow_shift, solver=given.solver)
    sampler, size = AnimateSampler.load(given.model), dataclasses.replace(SIZE, width=given.width, height=given.height)
    kinds = {
        "one segment": (given.videos, SEGMENT, False),
        "three segments": (given.long_videos, LONG, False),
        "between bars": (given.long_videos, SEGMENT, True),
    }
    scores = {}
    for name, (videos, frames, has_bars) in kinds.items():
        rng = random.Random(given.seed)
        pairs = [held_out_pair(number, frames, rng, has_bars) for number in range(videos)]
        if pairs:
            scores[name] = {"videos": videos, "frames": frames} | evaluate(sampler, pairs, given.seed, settings, size)
    text = json.dumps({"seed": given.seed, **dataclasses.asdict(settings), "scores": scores}, indent=2)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
