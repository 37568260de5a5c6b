"""Measure the drift of colours over a storyboard: `python -m benchmarks.storyboard`.

The demo model generates storyboards of six shots. The background is the median of each channel of a frame. Its drift is the
largest difference from the first shot over all later frames, in 255ths: for any channel, and for the mean of the channels
(brightness). The drift is measured in the mp4, with and without the correction. The benchmark repeats this with an artificial
drift, where every shot is lighter and flatter than its first image. The demo model itself has no such drift.
"""

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from backend.media.color_matching import grade_frames
from backend.media.video import read_frames
from backend.pipeline import storyboard, storyboard_loop
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from presets import load_preset

PRESET = load_preset("wan-tiny")
BAR = 2.0  # largest allowed drift, in 255ths
STORIES = {
    ("a red circle", "black"): "moving right, moving down, moving left, growing, moving up, standing still",
    ("a small cyan star", "navy"): "drifting left, growing, moving right, moving up, shrinking, moving down",
    ("a magenta square", "grey"): "moving down, moving right, growing, moving up, moving left, shrinking",
    ("a large yellow triangle", "dark green"): "shrinking, moving left, moving up, growing, moving right, moving down",
}

Grade = Callable[..., np.ndarray]


def drift(loaded: LoadedModel, prompts: list[str], seed: int, grade: Grade) -> tuple[float, float]:
    """Return the largest drift of any channel, and of brightness, over one storyboard."""
    shots = [{"prompt": prompt} for prompt in prompts]
    request = GenerationRequest.from_preset(PRESET, shots=shots, seed=seed)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(storyboard_loop, "grade_frames", grade):
        *_, final = storyboard.generate_video(request, loaded, Path(folder), lambda: False)
        assert isinstance(final, Finished), final
        medians = np.stack([np.median(frame.reshape(-1, 3), axis=0) for frame in read_frames(Path(final.result.path))])
    first = np.median(medians[: PRESET.num_frames], axis=0)
    away = medians[PRESET.num_frames :] - first
    return float(np.abs(away).max()), float(np.abs(away.mean(axis=1)).max())


def drifting(grade: Grade, frames: np.ndarray, before: np.ndarray, look, shared_frame: int) -> np.ndarray:
    """Make a shot flatter and lighter, lightest at its end, and apply `grade` to the result."""
    wander = np.linspace(0, 4, len(frames))[:, None, None, None]
    return grade(np.round(frames * 0.95 + 5 + wander).clip(0, 255).astype(np.uint8), before, look, shared_frame)


def as_it_is(frames: np.ndarray, before: np.ndarray, look, shared_frame: int) -> np.ndarray:
    """Return the frames without a correction."""
    return frames


def measure(loaded: LoadedModel) -> dict:
    """Measure the drift of all storyboards, with and without correction and artificial drift."""
    ways = {
        "corrected": grade_frames,
        "not_corrected": as_it_is,
        "made_up_drift_corrected": functools.partial(drifting, grade_frames),
        "made_up_drift_not_corrected": functools.partial(drifting, as_it_is),
    }
    stories = [
        [f"{shape} {motion} on a {background} background" for motion in motions.split(", ")]
        for (shape, background), motions in STORIES.items()
    ]
    found = {name: [drift(loaded, story, seed, way) for seed, story in enumerate(stories)] for name, way in ways.items()}
    return {
        name: {"channel": max(each[0] for each in drifts), "brightness": round(max(each[1] for each in drifts), 2)}
        for name, drifts in found.items()
    }


def main() -> None:
    """Print the figures. The exit code is 1 if the corrected drift is above the bar."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    figures = measure(load(PRESET, None, lambda event: None))
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if figures["corrected"]["channel"] <= BAR else 1)


if __name__ == "__main__":
    main()
