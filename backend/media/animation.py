"""A moving picture of what a denoising step has come to, without decoding it: numpy and Pillow only.

The first frame is decoded at each step anyway. Where its latents and its pixels are known, the colour of a latent is a linear
function that a ridge regression finds; that function colours the latents of all other frames. Where a frame's colours are those
of the first, the first one's detail is laid over them, so that what stands still stays sharp.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from backend.files import replacing

LONGEST_SIDE = 416  # pixels: half of 832, and a few tens of kilobytes
RIDGE = 1e-2  # of the mean variance: the demo model has more channels than a small frame has latents
_SHARP = 24.0  # a difference of this many of 255 steps lets a third of the first frame's detail through


def write_animation(latents: np.ndarray, first: np.ndarray, path: Path, fps: float) -> None:
    """Writes an animated WebP of all latent frames.

    `latents` float [C, F, h, w], the clean estimate; `first` its first frame decoded, uint8 [H, W, 3]; `fps` latent frames
    a second. The file appears whole.
    """
    frames = [Image.fromarray(frame) for frame in animation(latents, first)]
    with replacing(path) as part:
        frames[0].save(
            part, "WEBP", save_all=True, append_images=frames[1:], duration=round(1000 / fps), loop=0, quality=70, method=0
        )


def animation(latents: np.ndarray, first: np.ndarray) -> np.ndarray:
    """uint8 [F, height, width, 3], at most `LONGEST_SIDE` pixels wide or high."""
    colours = colours_of(latents, first)
    height, width = _size(first.shape[:2])
    rough = np.stack([_resized(frame, (height, width)) for frame in colours])
    sharp = _resized(first.astype(np.float32), (height, width))
    moved = np.abs(rough - rough[:1]).mean(axis=-1, keepdims=True)
    frames = rough + np.exp(-((moved / _SHARP) ** 2)) * (sharp - rough[0])
    return np.round(frames.clip(0, 255)).astype(np.uint8)


def colours_of(latents: np.ndarray, first: np.ndarray) -> np.ndarray:
    """A colour for each latent, float [F, h, w, 3] in 0..255, by what the first frame's pixels say of its latents."""
    channels, _, height, width = latents.shape
    pixels = np.asarray(Image.fromarray(first).resize((width, height), Image.Resampling.BOX), np.float64).reshape(-1, 3)
    known = latents[:, 0].reshape(channels, -1).T.astype(np.float64)
    centre, middle = known.mean(axis=0), pixels.mean(axis=0)
    known = known - centre
    strength = RIDGE * max(float((known**2).mean()), 1e-12) * len(known)
    weights = np.linalg.solve(known.T @ known + strength * np.eye(channels), known.T @ (pixels - middle))
    every = latents.transpose(1, 2, 3, 0).astype(np.float64) - centre
    return every @ weights + middle


def _size(size: tuple[int, int]) -> tuple[int, int]:
    scale = min(1.0, LONGEST_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """float [height, width, 3] from float [h, w, 3], smooth."""
    planes = [
        Image.fromarray(picture[..., channel].astype(np.float32), mode="F").resize(size[::-1], Image.Resampling.BICUBIC)
        for channel in range(3)
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)
