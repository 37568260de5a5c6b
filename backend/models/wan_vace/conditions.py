"""The conditions of VACE: the inputs of its control blocks, as float32 host arrays by name.

- `control_latents` [1, 2 C + 64, F, H, W]: C channels are the latents of the clip with the area to regenerate in grey. The next C
  channels are the latents of the clip with the area that stays in grey. The last 64 channels are a mask, 1 where a pixel is
  regenerated.
- `reference_latents` [1, C, R, H, W]: one latent frame for each of the R reference images, the last image first.

The latent frames of reference images precede the latent frames of the video. Source: diffusers, WanVACEPipeline.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.media.source import Source
from backend.models.common.pixels import clip_to_pixels
from backend.models.wan.conditions import encode_pixels
from backend.models.wan.model import Programs
from backend.runtime.work import Effects, OnHost
from backend.schemas.geometry import Geometry

CONTROL, REFERENCES = "control_latents", "reference_latents"


def encode_source(
    programs: Programs, weights: Mapping[str, Any], geometry: Geometry, source: Source | None, dtype: jnp.dtype
) -> Effects[jax.Array]:
    """Encode `source`, a clip with its mask, to the condition `control_latents`. Yields work.

    For a `source` of None, encode a grey clip with a mask that regenerates all pixels.
    """

    def encode(is_new: bool) -> Effects[jax.Array]:
        """Encode the clip with the area that stays in grey if `is_new`, else with the area to regenerate in grey."""

        def pixels(begin: int, end: int) -> np.ndarray:
            if source is None:
                return np.zeros((1, 3, end - begin, geometry.height, geometry.width), dtype)
            own = clip_to_pixels(source.frames[begin:end], np.float32)
            return np.where(source.is_new[begin:end] == is_new, own, np.float32(0)).astype(dtype)

        return (yield from encode_pixels(programs, weights, pixels, geometry.num_frames, geometry.temporal_scale))

    regenerated = yield from encode(True)
    unchanged = regenerated if source is None else (yield from encode(False))
    parts = unchanged, regenerated, mask_channels(geometry, source)
    return (yield OnHost(lambda xp, *parts: xp.concatenate([part.astype(np.float32) for part in parts], axis=1), parts))


def mask_channels(geometry: Geometry, source: Source | None) -> np.ndarray:
    """Build the mask channels [1, 64, F, H, W] float32, 1 where a pixel is regenerated.

    A latent position has one channel for each of its 8 x 8 pixels. A latent frame has the mask of a pixel frame near its middle.
    """
    _, _, num_frames, height, width = geometry.latent_shape(1)
    scale = geometry.spatial_scale
    frame_numbers = ((2 * np.arange(num_frames) + 1) * geometry.num_frames) // (2 * num_frames)
    if source is None:
        return np.ones((1, scale * scale, num_frames, height, width), np.float32)
    pixels = source.is_new[frame_numbers].reshape(num_frames, height, scale, width, scale).astype(np.float32)
    return pixels.transpose(2, 4, 0, 1, 3).reshape(1, scale * scale, num_frames, height, width)
