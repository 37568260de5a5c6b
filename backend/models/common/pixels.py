"""Conversion of images and clips to the networks' inputs, and small functions of arrays.

The argument `xp` is the module that computes: numpy, or jax.numpy where only the shapes of the results are computed.
"""

from types import ModuleType

import jax
import numpy as np
from numpy.typing import DTypeLike
from PIL import Image


def image_to_pixels(picture: Image.Image, dtype: DTypeLike) -> np.ndarray:
    """Convert an image to [1, 3, 1, height, width] in [-1, 1]."""
    return clip_to_pixels(np.asarray(picture)[None], dtype)


def clip_to_pixels(frames: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Convert uint8 [F, height, width, 3] to [1, 3, F, height, width] in [-1, 1]."""
    return (frames.astype(np.float32).transpose(3, 0, 1, 2)[None] / 127.5 - 1.0).astype(dtype)


def join_frames(xp: ModuleType, *pieces: jax.Array) -> jax.Array:
    return xp.concatenate([as_float32(xp, piece) for piece in pieces], axis=2)


def replace_first_frames(xp: ModuleType, first: jax.Array, latents: jax.Array) -> jax.Array:
    """Replace the first frames of `latents` by the frames of `first`. Frames are axis 2 of both arrays."""
    return xp.concatenate([first, latents[:, :, first.shape[2] :]], axis=2)


def as_float32(xp: ModuleType, array: jax.Array) -> jax.Array:
    return array.astype(np.float32)
