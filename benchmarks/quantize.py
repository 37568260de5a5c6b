"""Measure the error of `--quantize` on a demo model: `python -m benchmarks.quantize --preset wan-tiny --videos 2`.

The studio's own pipeline generates the same videos from the preset's examples in bfloat16, and with each number format in its
place. Prints one JSON object with, for each format, the mean and the lowest values in dB over the videos, compared with bfloat16:

- `latents`: power of the latents divided by the power of the error;
- `frames`: PSNR of the decoded frames before compression.

The row "float32" compares float32 with bfloat16 in the same way, to show the error of bfloat16 itself.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from backend.pipeline.decoding import decode_pieces
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.run import Run
from backend.schemas.events import Decoding
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset

VARIANTS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "fp8": {"dtype": "bfloat16", "quantize": "fp8"},
}
"""The compared forms of the weights, as changes of the preset. All are compared with the first."""


def make(loaded: LoadedModel, preset: Preset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate the video of one example. Return its latents, and its frames [1, 3, F, H, W] in [-1, 1]."""
    request = GenerationRequest.from_preset(preset, prompt=preset.examples[seed % len(preset.examples)], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        for event in generate(request, loaded, Path(folder), lambda: False):
            if isinstance(event, Decoding):
                break
        latents = load_file(Path(folder) / "stage2_latents.safetensors")["latents"]
    pieces = decode_pieces(Run(request=request, loaded=loaded, folder=Path(), is_cancelled=lambda: False), latents)
    return latents, np.concatenate([np.asarray(frames, np.float32) for frames, _ in pieces], axis=2)


def decibels(power: float, error: np.ndarray) -> float:
    """Return the ratio of `power` to the mean square of `error` in dB."""
    return 10 * math.log10(power / max(float(np.square(error).mean()), 1e-12))


def compare(ours: list[tuple[np.ndarray, np.ndarray]], reference: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Compare videos with reference videos. The peak of the frames is 2, the width of their range."""
    pairs = list(zip(ours, reference, strict=True))
    latents = [decibels(float(np.square(exact).mean()), exact - own) for (own, _), (exact, _) in pairs]
    frames = [decibels(4.0, exact - own) for (_, own), (_, exact) in pairs]
    values = {"latents": statistics.mean(latents), "latents_lowest": min(latents)}
    values |= {"frames": statistics.mean(frames), "frames_lowest": min(frames)}
    return {name: round(value, 1) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="wan-tiny")
    parser.add_argument("--videos", type=int, default=2)
    arguments = parser.parse_args()
    made: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for name, changes in VARIANTS.items():
        preset = load_preset(arguments.preset).model_copy(update=changes)
        loaded = load(preset, None, lambda event: None)
        made[name] = [make(loaded, preset, seed) for seed in range(arguments.videos)]
        sys.stderr.write(f"{name} done\n")
    reference = made.pop("bfloat16")
    result: dict[str, Any] = {"preset": arguments.preset, "videos": arguments.videos}
    result |= {name: compare(videos, reference) for name, videos in made.items()}
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
