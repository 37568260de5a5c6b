"""Compute a scene's audio: its shape hums.

A higher position has a higher tone. Left and right follow the image. Each kind of shape has its own overtones. A larger shape is
louder. Tones are whole multiples of 50 Hz, so each tone starts at phase zero in each frame of the spectrum. A vocoder receives
spectra without phases, and can learn such tones exactly.
"""

from __future__ import annotations

import math

import torch

from training.model_configs import FPS
from training.world import Scene, path

RATE = 16_000  # samples per second
HOP = 320  # samples per frame of the spectrum, a whole number of waves of each tone
NOTE = RATE // HOP  # Hz between neighbouring tones
LOWEST, OCTAVES = 480.0, 1.25  # the tone at the lower edge in Hz, and the rise to the upper edge
OVERTONES: dict[str, tuple[float, ...]] = {  # strength of each multiple of the tone
    "circle": (1.0,),
    "square": (1.0, 0.0, 0.6, 0.0, 0.4),
    "triangle": (1.0, 0.6, 0.45, 0.35),
    "star": (0.5, 1.0),
}


def hum(scene: Scene, num_frames: int, width: int, height: int) -> torch.Tensor:
    """Return samples [2, N], left and right, as long as the scene's frames."""
    count = round(num_frames / FPS * RATE)
    if scene.is_silent:
        return torch.zeros(2, count)
    time = torch.arange(count, dtype=torch.float64) / RATE
    x, y, radius = (_interpolate(values, time * FPS) for values in path(scene, num_frames, width, height))
    held = (torch.arange(count) // HOP * HOP + HOP // 2).clamp(max=count - 1)  # a tone lasts a whole frame of the spectrum
    note = notes(y[held] / height)
    strengths = OVERTONES[scene.shape]
    waves = sum(strength * torch.sin(2 * math.pi * note * (number + 1) * time) for number, strength in enumerate(strengths))
    loudness = radius / min(width, height) * math.sqrt(2 / sum(strength**2 for strength in strengths))
    angle = (x / width).clamp(0, 1) * math.pi / 2
    return torch.stack([torch.cos(angle), torch.sin(angle)]) * loudness * waves


def notes(down: torch.Tensor) -> torch.Tensor:
    """Return the tones in Hz of shapes at these shares of the height, counted from the top."""
    return (LOWEST * 2 ** (OCTAVES * (1 - down.double())) / NOTE).round() * NOTE


def _interpolate(values: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Interpolate values [F] at times between frames. After the last frame the value stays constant."""
    before = frames.long().clamp(max=len(values) - 1)
    after = (before + 1).clamp(max=len(values) - 1)
    share = (frames - before).clamp(0, 1).double()
    return values[before].double() * (1 - share) + values[after].double() * share
