"""The pictures of Matrix-Game 2.0: how its image encoder sees one, and the further channels of the transformer's input."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from PIL import Image
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from backend.models.wan.image_encoder import ImageEncoder

STILL_FRAMES = 30
"""Latent frames of a clip that is grey after its first frame: all later ones are as the last of these.

Derived from diffusers' `WanEncoder3d` with two residual blocks a level, whose causal convolutions see two frames back: 9 at the
latents' rate, 4 and a stride at half of it, 9 and a stride at the pixels'; 112 pixel frames together, so latent frame 29 is the
first that does not see the picture.
"""


class WholePictureEncoder(ImageEncoder):
    """CLIP on the whole picture, its sides brought to the encoder's square, whatever its aspect.

    Source: SkyworkAI/Matrix-Game, Matrix-Game-2/wan/vae/wanx_vae_src/clip.py.
    """

    def preprocess(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Pixels [N, 3, height, width], normalised as CLIP's."""
        pixels = np.stack([np.asarray(image, np.float32).transpose(2, 0, 1) / 255 for image in images])
        square = (self._size, self._size)
        resized = torch.nn.functional.interpolate(torch.from_numpy(pixels), size=square, mode="bicubic", align_corners=False)
        mean, deviation = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
        return (resized.numpy() - mean) / deviation


def cut_block_channels(xp: Any, channels: jax.Array, first: int, frames: int) -> jax.Array:
    """Return the channels of one block of `frames` latent frames, which begins with latent frame `first`.

    `channels` [1, C, F, H, W] covers at most `STILL_FRAMES` latent frames. Later frames repeat the last of them.
    """
    numbers = np.minimum(np.arange(first, first + frames), channels.shape[2] - 1)
    return xp.take(channels, numbers, axis=2)
