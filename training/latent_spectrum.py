"""Measure the spectrum of a demo model's latents: python -m training.latent_spectrum --model models/wan-tiny

Prints A and b of the power A * w ** -b at w cycles per image, where noise has power 1. They are fitted to the cosine transforms
of normalised latents of the demo models' world. They become the preset's `latent_spectrum`, from which progressive resolution
computes the number of steps at half the size. Source of the method: Xiao et al. 2026, arXiv:2605.18736.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch

from backend.sampling.enlarging import cosine_transform
from training.fast_vae import speed_up
from training.latents import encode
from training.recipes import recipe_of
from training.world import render, sample_training_scene

SIZE, NUM_FRAMES = 96, 17


def powers(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequencies [N] of latents [..., H, W] in cycles per image, without the mean, and their mean power [N]."""
    height, width = latents.shape[-2:]
    transformed = cosine_transform(height) @ latents @ cosine_transform(width).T
    power = (transformed**2).mean(tuple(range(latents.ndim - 2)))
    rows, columns = np.arange(height)[:, None] / 2, np.arange(width) / 2
    frequencies = np.hypot(rows, columns)
    return frequencies.ravel()[1:], power.ravel()[1:]


def fit(frequencies: np.ndarray, power: np.ndarray) -> tuple[float, float]:
    """Fit A and b of the power law A * w ** -b by least squares of the logarithms."""
    slope, offset = np.polyfit(np.log(frequencies), np.log(power), 1)
    return float(np.exp(offset)), float(-slope)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/wan-tiny"))
    parser.add_argument("--clips", type=int, default=200, help="clips of the demo models' world")
    arguments = parser.parse_args()
    vae = recipe_of(arguments.model).autoencoder.load(arguments.model / "vae").eval()
    speed_up(vae)
    rng = random.Random(7)
    scenes = [sample_training_scene(rng) for _ in range(arguments.clips)]
    videos = torch.stack([render(scene, NUM_FRAMES, SIZE, SIZE) for scene in scenes])
    latents = torch.cat([encode(vae, part) for part in videos.split(8)]).numpy()
    frequencies, power = powers(latents)
    scale, exponent = fit(frequencies, power)
    sys.stdout.write(json.dumps({"latent_spectrum": [round(scale, 3), round(exponent, 3)]}) + "\n")
    order = np.argsort(frequencies)
    sys.stderr.write("".join(f"{frequencies[one]:.2f} cycles: {power[one]:.3f}\n" for one in order))


if __name__ == "__main__":
    main()
