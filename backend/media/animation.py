"""An animated preview of a denoising step's latents, without decoding all frames. Uses numpy and Pillow only. Each step decodes
the first frame anyway. A ridge regression fits a linear function from the first frame's latents to its pixels. The function then
estimates colours for the latents of all other frames. In areas where a frame has the same colours as the first frame, the first
frame's detail is added. So areas without motion stay sharp."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from backend.files import replace_file

# Longest side of a preview in pixels. It is half of the usual 832, so that a preview's file has only a few tens of kilobytes.
LONGEST_SIDE = 416
# The regression's penalty on weights, relative to the latents' mean variance. Without the penalty, the regression has no unique
# solution if a frame has fewer latents than channels, as small frames of the demo model do.
RIDGE = 1e-2
# Difference (of 255) between a pixel's estimated colours in a frame and in the first frame. At this difference, about a third of
# the first frame's detail is added to the pixel.
_SHARP = 24.0


def write_animation(latents: np.ndarray, first: np.ndarray, path: Path, fps: float) -> None:
    """Write an animated WebP of all latent frames. No reader sees an incomplete file. `latents` is the clean estimate, float [C,
    F, h, w]. `first` is the decoded first frame, uint8 [H, W, 3]. `fps` is the number of latent frames per second."""
    with replace_file(path) as part:
        part.write_bytes(encode_animation(preview_frames(latents, first), fps, quality=70))


def encode_animation(frames: np.ndarray, fps: float, quality: int = 85) -> bytes:
    """Return an animated WebP of these frames, uint8 [F, H, W, 3]."""
    file = BytesIO()
    first, *others = map(Image.fromarray, frames)
    first.save(file, "WEBP", save_all=True, append_images=others, duration=round(1000 / fps), loop=0, quality=quality, method=0)
    return file.getvalue()


def preview_frames(latents: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return uint8 [F, height, width, 3], with sides of at most `LONGEST_SIDE` pixels."""
    colours = estimate_colours(latents, first)
    scale = min(1.0, LONGEST_SIDE / max(first.shape[:2]))
    height, width = (max(1, round(side * scale)) for side in first.shape[:2])
    rough = np.stack([_resize(frame, (height, width)) for frame in colours])
    sharp = _resize(first.astype(np.float32), (height, width))
    moved = np.abs(rough - rough[:1]).mean(axis=-1, keepdims=True)
    frames = rough + np.exp(-((moved / _SHARP) ** 2)) * (sharp - rough[0])
    return np.round(frames.clip(0, 255)).astype(np.uint8)


def estimate_colours(latents: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Estimate a colour for each latent, float [F, h, w, 3] in 0..255, by regression from the first frame's latents to its
    pixels."""
    channels, _, height, width = latents.shape
    pixels = np.asarray(Image.fromarray(first).resize((width, height), Image.Resampling.BOX), np.float64).reshape(-1, 3)
    samples = latents[:, 0].reshape(channels, -1).T.astype(np.float64)
    centre, middle = samples.mean(axis=0), pixels.mean(axis=0)
    samples = samples - centre
    strength = RIDGE * max(float((samples**2).mean()), 1e-12) * len(samples)
    weights = np.linalg.solve(samples.T @ samples + strength * np.eye(channels), samples.T @ (pixels - middle))
    every = latents.transpose(1, 2, 3, 0).astype(np.float64) - centre
    return every @ weights + middle


def _resize(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize float [h, w, 3] smoothly to float [height, width, 3]."""
    planes = [
        Image.fromarray(picture[..., channel].astype(np.float32), mode="F").resize(size[::-1], Image.Resampling.BICUBIC)
        for channel in range(3)
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)
