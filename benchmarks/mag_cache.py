"""Measure MagCache's cost and gain on a demo model: `python -m benchmarks.mag_cache --preset wan-tiny --videos 60`.

The studio's own pipeline generates the same held-out scenes, text to video, without MagCache and with each threshold. Prints one
JSON object with, for each threshold:

- the number of reused steps;
- the seconds of denoising with previews (median over the videos; the thresholds alternate);
- the share of videos in which the detector reads each property of the prompt;
- compared with the full videos: mean and lowest PSNR in dB of the mp4s' frames, and the speedup.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from presets import Preset, load_preset
from training.detector import detect
from training.prompts import describe
from training.world import Scene, held_out_triples, sample_scene

THRESHOLDS = (0.0, 0.06, 0.12, 0.24)
READ = ("colour", "shape", "motion", "background")


def make(loaded: LoadedModel, preset: Preset, prompt: str, seed: int, threshold: float) -> tuple[np.ndarray, float]:
    """Generate a video. Return its frames and the seconds of denoising."""
    request = GenerationRequest.from_preset(preset, prompt=prompt, seed=seed, mag_cache=threshold)
    with tempfile.TemporaryDirectory() as folder:
        *_, final = generate(request, loaded, Path(folder), lambda: False)
        assert isinstance(final, Finished), final
        return np.stack(list(read_frames(Path(final.result.path)))), final.result.seconds["denoise"]


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Return the PSNR of uint8 frames in dB."""
    return 10 * math.log10(255**2 / max(float(np.square(one.astype(float) - other).mean()), 1e-9))


def summary(scenes: list[Scene], rows: list[tuple], full: list[tuple]) -> dict[str, Any]:
    """Summarise the videos of one threshold. `rows` and `full` have the frames and seconds of each video."""
    seen = [detect(torch.from_numpy(frames)) for frames, _ in rows]
    shares = {
        name: round(
            sum(getattr(scene, name) == getattr(one, name) for scene, one in zip(scenes, seen, strict=True)) / len(seen), 4
        )
        for name in READ
    }
    seconds, full_seconds = (statistics.median(seconds for _, seconds in some) for some in (rows, full))
    found = {"denoise_seconds": round(seconds, 3)} | shares
    if rows is full:
        return found
    likeness = [psnr(frames, theirs) for (frames, _), (theirs, _) in zip(rows, full, strict=True)]
    times = {"times_faster": round(full_seconds / seconds, 2)}
    return found | times | {"psnr_mean": round(statistics.mean(likeness), 1), "psnr_lowest": round(min(likeness), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="wan-tiny")
    parser.add_argument("--videos", type=int, default=60)
    arguments = parser.parse_args()
    preset, rng = load_preset(arguments.preset), random.Random(0)
    loaded, triples = load(preset, None, lambda event: None), sorted(held_out_triples())
    scenes = [sample_scene(rng, triples[index % len(triples)], None) for index in range(arguments.videos)]
    rows: dict[float, list[tuple]] = {threshold: [] for threshold in THRESHOLDS}
    for seed, scene in enumerate(scenes):
        prompt = describe(scene, rng)
        for threshold in THRESHOLDS:  # alternate the thresholds, so that other work on the machine affects all equally
            rows[threshold].append(make(loaded, preset, prompt, seed, threshold))
        sys.stderr.write(f"\r{seed + 1} of {len(scenes)}")
    result: dict[str, Any] = {"preset": preset.name, "videos": len(scenes)}
    for threshold in THRESHOLDS:
        plan = plan_steps(GenerationRequest.from_preset(preset, prompt="x", mag_cache=threshold))
        own = summary(scenes, rows[threshold], rows[0.0])
        result[f"{threshold:g}"] = {"reused_steps": f"{sum(step.reuses for step in plan)} of {len(plan)}"} | own
    sys.stdout.write("\n" + json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
