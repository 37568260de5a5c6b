"""The conditions of VACE: the inputs of its control blocks, as float32 host arrays by name.

- `control_latents` [1, 2 C + 64, F, H, W]: C channels are the latents of the clip with the area to regenerate in grey. The next C
  channels are the latents of the clip with the area that stays in grey. The last 64 channels are a mask, 1 where a pixel is
  regenerated.
- `reference_latents` [1, C, R, H, W]: one latent frame for each of the R reference images, the last image first.

The latent frames of reference images precede the latent frames of the video. Source: diffusers, WanVACEPipeline.
"""

import numpy as np

from backend.media.source import Source
from backend.schemas.geometry import Geometry

CONTROL, REFERENCES = "control_latents", "reference_latents"


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
