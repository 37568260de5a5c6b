"""Measure whether the seams of context windows are visible: `python -m benchmarks.windows`.

The demo model generates long videos in windows. A seam is a border between latent frames where a window of the first step starts
or ends. At each seam the mean difference between two frames is divided by the median difference of the video. The benchmark
prints one JSON object: the mean, median and maximum of these ratios, the mean of the worst video, and the share of seams at 1.2
or less. It prints the same for all other borders between latent frames, for ordinary videos in one piece, and for seams of
windows that do not move.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import numpy as np

from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas import windows
from backend.schemas.events import Finished
from backend.schemas.geometry import latent_frames
from backend.schemas.request import GenerationRequest
from presets import load_preset

PRESET = load_preset("wan-tiny")
TRAINED_FRAMES = PRESET.trained_frames or PRESET.num_frames
LENGTH = latent_frames(TRAINED_FRAMES)
BAR = 1.2


def ratios(loaded: LoadedModel, prompt: str, seed: int, num_frames: int) -> np.ndarray:
    """Return the change from the last frame of each latent frame to the next frame, divided by the video's median change."""
    request = GenerationRequest.from_preset(PRESET, prompt=prompt, seed=seed, num_frames=num_frames)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(generate(request, loaded, Path(folder), bool)) as events:
        *_, final = events
        assert isinstance(final, Finished), final
        frames = np.stack(list(read_frames(Path(final.result.path)))).astype(np.float32)
    changes = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
    return changes[:: PRESET.vae_scale_temporal] / np.median(changes)


def window_edges(num_latent_frames: int, length: int) -> list[int]:
    """Return the latent frames at which windows of the first step start or end, without the video's own start and end."""
    begins = {window.begin for window in windows.windows_at(0, num_latent_frames, length)}
    return sorted((begins | {begin + length for begin in begins}) - {0, num_latent_frames})


def summary(videos: Iterable[np.ndarray]) -> dict:
    """Summarise the ratios of several videos."""
    videos = list(videos)
    every = np.concatenate(videos)
    return {
        "count": len(every),
        "mean": round(float(every.mean()), 3),
        "median": round(float(np.median(every)), 3),
        "largest": round(float(every.max()), 3),
        "worst_video_mean": round(max(float(video.mean()) for video in videos), 3),
        "share_within_bar": round(float((every <= BAR).mean()), 3),
    }


def measure(loaded: LoadedModel, num_frames: int) -> dict:
    """Measure a video for each of the preset's moving examples."""
    prompts = [prompt for prompt in PRESET.examples if "standing still" not in prompt]
    seams = [edge - 1 for edge in window_edges(latent_frames(num_frames), LENGTH)]

    def all_of(count: int) -> list[np.ndarray]:
        return [ratios(loaded, prompt, seed, count) for seed, prompt in enumerate(prompts)]

    moved, whole = all_of(num_frames), all_of(TRAINED_FRAMES)
    with mock.patch.object(windows, "_van_der_corput", lambda step: 0.0):
        fixed = all_of(num_frames)
    return {
        "frames": num_frames,
        "seams": summary(video[seams] for video in moved),
        "other_borders": summary(np.delete(video, seams) for video in moved),
        "in_one_piece": summary(whole),
        "seams_of_windows_that_do_not_move": summary(video[seams] for video in fixed),
    }


def main() -> None:
    """Print the figures. The exit code is 1 if the mean at the seams is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=97)
    arguments = parser.parse_args()
    figures = measure(load(PRESET, None, lambda event: None), arguments.frames)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if figures["seams"]["mean"] <= BAR else 1)


if __name__ == "__main__":
    main()
