"""Pictures and clips as the networks see them, and arrays on the host. Functions that take `xp` compute with numpy's functions,
or with jax.numpy's where only shapes are known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike
from PIL import Image


def pixels_of(picture: Image.Image, dtype: DTypeLike) -> np.ndarray:
    """[1, 3, 1, height, width] in [-1, 1]."""
    return clip_pixels(np.asarray(picture)[None], dtype)


def clip_pixels(frames: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """[1, 3, F, height, width] in [-1, 1] of uint8 [F, height, width, 3]."""
    return (frames.astype(np.float32).transpose(3, 0, 1, 2)[None] / 127.5 - 1.0).astype(dtype)


def joined_frames(xp: Any, *pieces: jax.Array) -> jax.Array:
    """Latent frames [1, C, F, H, W] one after another, float32."""
    return xp.concatenate([as_float32(xp, piece) for piece in pieces], axis=2)


def with_beginning(xp: Any, first: jax.Array, latents: jax.Array) -> jax.Array:
    """Latents [B, C, T, ...] whose first ones are these."""
    return xp.concatenate([first, latents[:, :, first.shape[2] :]], axis=2)


def as_float32(xp: Any, array: jax.Array) -> jax.Array:
    """The same numbers as float32."""
    return array.astype(np.float32)


def as_dtype(dtype: jnp.dtype) -> Callable[[Any, jax.Array], jax.Array]:
    """A function of `xp` and an array that casts the array."""
    return lambda xp, array: array.astype(dtype)
