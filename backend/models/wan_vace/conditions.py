"""The conditions of VACE: the inputs of its control blocks, as float32 host arrays by name.

- `control_latents` [1, 2 C + 64, F, H, W]: C channels are the latents of the clip with the area to regenerate in grey. The next C
  channels are the latents of the clip with the area that stays in grey. The last 64 channels are a mask, 1 where a pixel is
  regenerated.
- `reference_latents` [1, C, R, H, W]: one latent frame for each of the R reference images, the last image first.

The latent frames of reference images precede the latent frames of the video. Source: diffusers, WanVACEPipeline.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from backend.media.source import Source
from backend.models.common.pixels import clip_to_pixels, image_to_pixels, join_frames
from backend.models.model import Conditions
from backend.models.wan.conditions import encode_pixels
from backend.models.wan.model import Programs
from backend.runtime.work import Call, Effects, OnHost
from backend.schemas.geometry import Geometry

CONTROL, REFERENCES = "control_latents", "reference_latents"


def encode_source(
    programs: Programs, weights: Mapping[str, Any], geometry: Geometry, source: Source | None, dtype: jnp.dtype
) -> Effects[jax.Array]:
    """Encode `source`, a clip with its mask, to the condition `control_latents`. Yields work.

    For a `source` of None, encode a grey clip with a mask that regenerates all pixels.
    """

    def encode(is_new: bool) -> Effects[jax.Array]:
        def pixels(begin: int, end: int) -> np.ndarray:
            return _source_pixels(geometry, source, begin, end, is_new).astype(dtype)

        encoders = programs.encode_first, programs.encode_next
        return (yield from encode_pixels(*encoders, weights, pixels, geometry.num_frames, geometry.temporal_scale))

    regenerated = yield from encode(True)
    unchanged = regenerated if source is None else (yield from encode(False))
    return (yield OnHost(_join_channels, (unchanged, regenerated, mask_channels(geometry, source))))


def encode_references(
    programs: Programs, weights: Mapping[str, Any], images: Sequence[Image.Image], dtype: jnp.dtype
) -> Effects[jax.Array]:
    """Encode reference images, which have the video's size, to the condition `reference_latents`. Yields work."""
    frames = []
    for image in reversed(images):
        frames.append((yield Call(programs.encode_image, (weights, image_to_pixels(image, dtype)))))
    return (yield OnHost(join_frames, tuple(frames)))


def prepare_control(conditions: Conditions, dtype: jnp.dtype) -> Effects[jax.Array]:
    """Build the input of the control blocks: the latents of reference images, then the control latents. Yields work."""

    def cast(xp: ModuleType, control: jax.Array) -> jax.Array:
        return control.astype(dtype)

    def append_to_references(xp: ModuleType, references: jax.Array, control: jax.Array) -> jax.Array:
        missing = control.shape[1] - references.shape[1]
        padded = xp.pad(references, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0)))
        return xp.concatenate([padded, control], axis=2).astype(dtype)

    if REFERENCES not in conditions:
        return (yield OnHost(cast, (conditions[CONTROL],)))
    return (yield OnHost(append_to_references, (conditions[REFERENCES], conditions[CONTROL])))


def mask_channels(geometry: Geometry, source: Source | None) -> np.ndarray:
    """Build the mask channels [1, 64, F, H, W] float32, 1 where a pixel is regenerated.

    A latent position covers 8 x 8 pixels of a frame, and has one channel for each of these pixels. A latent frame covers several
    pixel frames. It has the mask of a pixel frame near their middle.
    """
    _, _, num_frames, height, width = geometry.latent_shape(1)
    scale = geometry.spatial_scale
    frame_numbers = ((2 * np.arange(num_frames) + 1) * geometry.num_frames) // (2 * num_frames)
    if source is None:
        return np.ones((1, scale * scale, num_frames, height, width), np.float32)
    pixels = source.is_new[frame_numbers].reshape(num_frames, height, scale, width, scale).astype(np.float32)
    return pixels.transpose(2, 4, 0, 1, 3).reshape(1, scale * scale, num_frames, height, width)


def _source_pixels(geometry: Geometry, source: Source | None, begin: int, end: int, is_new: bool) -> np.ndarray:
    """Return the clip's frames from `begin` to `end` - 1 with one area in grey, [1, 3, frames, height, width] in [-1, 1].

    If `is_new` is true, the area that stays is grey. Otherwise the area to regenerate is grey. For a `source` of None, all pixels
    are grey.
    """
    if source is None:
        return np.zeros((1, 3, end - begin, geometry.height, geometry.width), np.float32)
    pixels = clip_to_pixels(source.frames[begin:end], np.float32)
    return np.where(source.is_new[begin:end] == is_new, pixels, np.float32(0))


def _join_channels(xp: ModuleType, *parts: jax.Array) -> jax.Array:
    return xp.concatenate([part.astype(np.float32) for part in parts], axis=1)
