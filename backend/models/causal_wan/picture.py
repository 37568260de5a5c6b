"""Matrix-Game 2.0's additional input channels for one block: a mask, and the latents of the input image."""

from types import ModuleType

import jax
import numpy as np

STILL_FRAMES = 30
"""Number of different latent frames in a clip that is grey after its first frame. All later latent frames equal the last of them.

Derived from diffusers' `WanEncoder3d` with two residual blocks per level, whose causal convolutions see two frames back. There
are 9 such convolutions at the latent frame rate, 4 and a stride at twice that rate, and 9 and a stride at the pixel frame rate.
Together they reach 112 pixel frames back, so latent frame 29 is the first that does not see the image.
"""


def cut_block_channels(xp: ModuleType, channels: jax.Array, first: int, frames: int) -> jax.Array:
    """Return the input channels of the image for the block of `frames` latent frames that starts with latent frame `first`.

    `channels` [1, C, F, H, W] has these channels for the video's first F latent frames, at most `STILL_FRAMES`. All later latent
    frames have the channels of the last of these F frames.
    """
    numbers = np.minimum(np.arange(first, first + frames), channels.shape[2] - 1)
    return xp.take(channels, numbers, axis=2)
