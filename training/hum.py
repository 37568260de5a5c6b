"""How a scene sounds: its shape hums, and what one sees is what one hears.

The higher the shape, the higher the tone; left and right are heard where they are seen; each kind of shape has its own
overtones; larger is louder; a silent scene is silent. Tones are notes: whole multiples of 50 Hz, so that each begins anew, at
zero, with each frame of the spectrum. A vocoder sees spectra without phases, and can learn such tones exactly.
"""

from __future__ import annotations

import math

import torch

from training.model_configs import FPS
from training.world import Scene, path

RATE = 16_000  # samples a second
HOP = 320  # samples a frame of the spectrum; a note fits into it with whole waves
NOTE = RATE // HOP  # Hz between neighbouring notes
LOWEST, OCTAVES = 480.0, 1.25  # the tone at the picture's lower edge in Hz, and how far it rises to the upper edge
OVERTONES: dict[str, tuple[float, ...]] = {  # how strong each multiple of the tone is
    "circle": (1.0,),
    "square": (1.0, 0.0, 0.6, 0.0, 0.4),
    "triangle": (1.0, 0.6, 0.45, 0.35),
    "star": (0.5, 1.0),
}


def hum(scene: Scene, num_frames: int, width: int, height: int) -> torch.Tensor:
    """Samples [2, N] of the scene's video: left and right, as long as its frames."""
    count = round(num_frames / FPS * RATE)
    if scene.is_silent:
        return torch.zeros(2, count)
    time = torch.arange(count, dtype=torch.float64) / RATE
    x, y, radius = (_at(values, time * FPS) for values in path(scene, num_frames, width, height))
    held = (torch.arange(count) // HOP * HOP + HOP // 2).clamp(max=count - 1)  # a note lasts a whole frame of the spectrum
    note = notes(y[held] / height)
    strengths = OVERTONES[scene.shape]
    waves = sum(strength * torch.sin(2 * math.pi * note * (number + 1) * time) for number, strength in enumerate(strengths))
    loudness = radius / min(width, height) * math.sqrt(2 / sum(strength**2 for strength in strengths))
    angle = (x / width).clamp(0, 1) * math.pi / 2
    return torch.stack([torch.cos(angle), torch.sin(angle)]) * loudness * waves


def notes(down: torch.Tensor) -> torch.Tensor:
    """The tones in Hz of shapes at these shares of the height, counted from above."""
    return (LOWEST * 2 ** (OCTAVES * (1 - down.double())) / NOTE).round() * NOTE


def _at(values: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Values [F] of whole frames at any times between them; after the last frame the last one."""
    before = frames.long().clamp(max=len(values) - 1)
    after = (before + 1).clamp(max=len(values) - 1)
    share = (frames - before).clamp(0, 1).double()
    return values[before].double() * (1 - share) + values[after].double() * share
