"""What VACE's control blocks are shown, as host arrays by name: `control_latents` [1, 2 C + 64, F, H, W], a clip's latents where
it is to stay, then those where it is made anew, then which of its pixels are; and `reference_latents` [1, C, R, H, W], one frame
for each reference picture. All float32.

The reference pictures become latent frames before the video's own, the last picture first. Source: diffusers, WanVACEPipeline.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from backend.media.source import Source
from backend.models.common.pixels import clip_pixels, joined_frames, pixels_of
from backend.models.wan.conditions import encode_pixels
from backend.models.wan.model import Programs
from backend.runtime.work import Call, Effect, OnHost
from backend.schemas.geometry import Geometry

CONTROL, REFERENCES = "control_latents", "reference_latents"


def encode_source(
    programs: Programs, weights: Mapping[str, Any], geometry: Geometry, source: Source | None, dtype: jnp.dtype
) -> Generator[Effect, Any, jax.Array]:
    """Work: the `control_latents` of what the video is made from; without anything, of a grey clip that is all made anew."""

    def encode(is_new: bool) -> Generator[Effect, Any, jax.Array]:
        def pixels(begin: int, end: int) -> np.ndarray:
            return _source_pixels(geometry, source, begin, end, is_new).astype(dtype)

        encoders = programs.encode_first, programs.encode_next
        return (yield from encode_pixels(*encoders, weights, pixels, geometry.num_frames, geometry.temporal_scale))

    new = yield from encode(True)
    stays = new if source is None else (yield from encode(False))
    return (yield OnHost(_join_channels, (stays, new, mask_channels(geometry, source))))


def encode_references(
    programs: Programs, weights: Mapping[str, Any], pictures: Sequence[Image.Image], dtype: jnp.dtype
) -> Generator[Effect, Any, jax.Array]:
    """Work: the `reference_latents` of pictures of the video's size."""
    frames = []
    for picture in reversed(pictures):
        frames.append((yield Call(programs.encode_image, (weights, pixels_of(picture, dtype)))))
    return (yield OnHost(joined_frames, tuple(frames)))


def prepare_control(conditions: Mapping[str, Any], dtype: jnp.dtype) -> Generator[Effect, Any, jax.Array]:
    """Work: what the control blocks are shown, the references' frames first."""

    def cast(xp: Any, control: jax.Array) -> jax.Array:
        return control.astype(dtype)

    def append_to_references(xp: Any, references: jax.Array, control: jax.Array) -> jax.Array:
        missing = control.shape[1] - references.shape[1]
        padded = xp.pad(references, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0)))
        return xp.concatenate([padded, control], axis=2).astype(dtype)

    if REFERENCES not in conditions:
        return (yield OnHost(cast, (conditions[CONTROL],)))
    return (yield OnHost(append_to_references, (conditions[REFERENCES], conditions[CONTROL])))


def mask_channels(geometry: Geometry, source: Source | None) -> np.ndarray:
    """[1, 64, F, H, W] float32, 1 where a pixel is made anew: the pixels of a latent lie along the channels, and of the pixel
    frames that a latent frame stands for, one counts."""
    _, _, num_frames, height, width = geometry.latent_shape(1)
    scale = geometry.spatial_scale
    shown = ((2 * np.arange(num_frames) + 1) * geometry.num_frames) // (2 * num_frames)
    if source is None:
        return np.ones((1, scale * scale, num_frames, height, width), np.float32)
    pixels = source.is_new[shown].reshape(num_frames, height, scale, width, scale).astype(np.float32)
    return pixels.transpose(2, 4, 0, 1, 3).reshape(1, scale * scale, num_frames, height, width)


def _source_pixels(geometry: Geometry, source: Source | None, begin: int, end: int, is_new: bool) -> np.ndarray:
    """Frames of the clip, grey (0) where a pixel is not of this sort."""
    if source is None:
        return np.zeros((1, 3, end - begin, geometry.height, geometry.width), np.float32)
    pixels = clip_pixels(source.frames[begin:end], np.float32)
    return np.where(source.is_new[begin:end] == is_new, pixels, np.float32(0))


def _join_channels(xp: Any, *parts: jax.Array) -> jax.Array:
    return xp.concatenate([part.astype(np.float32) for part in parts], axis=1)
