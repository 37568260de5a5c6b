"""Matrix-Game 2.0's input image: preprocessing for the image encoder, and the image channels of the transformer's input."""

from collections.abc import Sequence
from types import ModuleType

import jax
import numpy as np
import torch
from PIL import Image
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from backend.models.wan.image_encoder import ImageEncoder

STILL_FRAMES = 30
"""Number of different latent frames in a clip that is grey after its first frame. All later latent frames equal the last of them.

Derived from diffusers' `WanEncoder3d` with two residual blocks per level, whose causal convolutions see two frames back. There
are 9 such convolutions at the latent frame rate, 4 and a stride at twice that rate, and 9 and a stride at the pixel frame rate.
Together they reach 112 pixel frames back, so latent frame 29 is the first that does not see the image.
"""


class WholeImageEncoder(ImageEncoder):
    """CLIP's encoder for the whole image: the image is resized to a square without cropping.

    Source: SkyworkAI/Matrix-Game, Matrix-Game-2/wan/vae/wanx_vae_src/clip.py.
    """

    def preprocess(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Resize images to [N, 3, size, size], and normalise them with CLIP's mean and standard deviation."""
        pixels = np.stack([np.asarray(image, np.float32).transpose(2, 0, 1) / 255 for image in images])
        square = (self._size, self._size)
        resized = torch.nn.functional.interpolate(torch.from_numpy(pixels), size=square, mode="bicubic", align_corners=False)
        mean, deviation = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
        return (resized.numpy() - mean) / deviation


def cut_block_channels(xp: ModuleType, channels: jax.Array, first: int, frames: int) -> jax.Array:
    """Return the image channels of the block of `frames` latent frames that starts with latent frame `first`.

    `channels` [1, C, F, H, W] has the video's first latent frames, at most `STILL_FRAMES`. All later latent frames are equal to
    the last of these latent frames.
    """
    numbers = np.minimum(np.arange(first, first + frames), channels.shape[2] - 1)
    return xp.take(channels, numbers, axis=2)
