"""The conditions: the denoiser's inputs besides noise, computed from prompts and input images. They are float32 host arrays.

- `prompt_embeds` and `negative_prompt_embeds` [1, 512, D]: the embeddings of one prompt each.
- `text_bias` [B, 1, 1, L]: a bias for each of the B prompts, which cross-attention adds to the scores of the text positions. It
  exists only if the text is padded to L < 512 positions.
- `image_seen` [images, tokens, D]: the image encoder's output.
- `first_frame` [1, C, K, H, W]: K clean latent frames of the first image, or of the clip that the video extends.
- `image_channels` [1, 4 + C, F, H, W]: a mask, then the latents of a clip that is grey except for the input images. Models that
  read images as additional input channels have this condition instead of `first_frame`.
- `clip` [1, C, F, H, W]: the latents of the clip that the request restyles.

With progressive resolution, `PromptConditions.half` has `first_frame` or `image_channels` at half of the video's size.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.common.pixels import clip_to_pixels, join_frames
from backend.models.model import Conditions
from backend.models.wan.spec import TEXT_TOKENS
from backend.runtime.work import Call, Effects, OnHost
from backend.schemas.geometry import Geometry

EMBEDDINGS = ("prompt_embeds", "negative_prompt_embeds")


def pad_embeddings(xp: ModuleType, embeddings: jax.Array) -> tuple[jax.Array, ...]:
    """Split the embeddings [B, L, D] of B prompts into B arrays [1, 512, D] float32, padded with zeros."""
    padded = xp.pad(embeddings.astype(np.float32), ((0, 0), (0, TEXT_TOKENS - embeddings.shape[1]), (0, 0)))
    return tuple(padded[row : row + 1] for row in range(len(padded)))


def branch_embeddings(conditions: Conditions, branches: int, dtype: jnp.dtype) -> Effects[tuple]:
    """Prepare the transformer's text and image inputs. Yields work.

    `branches` is 1 for the prompt, 2 for the prompt and the negative prompt. Returns embeddings [branches, L, D], the bias of
    the text positions, and the image encoder's tokens. Bias and image tokens can be None.
    """
    bias, image_tokens = conditions.get("text_bias"), conditions.get("image_seen")
    length = TEXT_TOKENS if bias is None else bias.shape[-1]
    padded = tuple(conditions[name] for name in EMBEDDINGS[:branches])
    embeddings = yield OnHost(lambda xp, *padded: xp.concatenate(padded)[:, :length].astype(dtype), padded)
    if bias is not None:
        bias = yield OnHost(lambda xp, bias: bias[:branches], (bias,))
    if image_tokens is not None:
        image_tokens = yield OnHost(lambda xp, image_tokens: image_tokens.astype(dtype), (image_tokens,))
    return embeddings, bias, image_tokens


def encode_image_channels(
    programs: Any, weights: Mapping[str, object], geometry: Geometry, first: np.ndarray, last: np.ndarray | None = None
) -> Effects[jax.Array]:
    """Encode a grey clip (all pixels 0) that starts with the frame `first` and, if given, ends with the frame `last`.

    Both frames are [1, 3, 1, height, width] in [-1, 1]. Returns `image_channels`: a mask, 1 for pixel frames that are images, and
    the clip's latents. A latent frame has one channel of the mask for each of its pixel frames. The single pixel frame of the
    first latent frame fills all channels. Yields work. Source: diffusers, WanImageToVideoPipeline.prepare_latents.
    """
    _, _, frames, height, width = geometry.latent_shape(1)
    scale = geometry.temporal_scale
    num_frames = 1 + scale * (frames - 1)
    grey = np.zeros((1, 3, scale, *first.shape[3:]), first.dtype)
    mask = np.zeros((1, scale, frames, height, width), np.float32)
    mask[:, :, 0] = 1
    if last is not None:
        mask[:, -1, -1] = 1

    def pixels(begin: int, end: int) -> np.ndarray:
        if begin == 0:
            return first
        return grey if last is None or end < num_frames else np.concatenate([grey[:, :, :-1], last], axis=2)

    clip = yield from encode_pixels(programs, weights, pixels, num_frames, scale)
    return (yield OnHost(lambda xp, mask, clip: xp.concatenate([mask, clip], axis=1), (mask, clip)))


def encode_frames(
    programs: Any, weights: Mapping[str, object], frames: np.ndarray, scale: int, dtype: jnp.dtype
) -> Effects[jax.Array]:
    """Encode a clip's `frames`, uint8 [F, height, width, 3], as `encode_pixels` does. Yields work."""

    def pixels(begin: int, end: int) -> np.ndarray:
        return clip_to_pixels(frames[begin:end], dtype)

    return (yield from encode_pixels(programs, weights, pixels, len(frames), scale))


def encode_pixels(
    programs: Any, weights: Mapping[str, object], pixels: Callable[[int, int], np.ndarray], num_frames: int, scale: int
) -> Effects[jax.Array]:
    """Encode a clip to the posterior's mode, latents [1, C, F, H, W] float32. Yields work.

    `pixels(begin, end)` returns the frames from `begin` to `end` - 1, [1, 3, end - begin, height, width] in [-1, 1]. Each call of
    a program encodes one latent frame, to limit memory. The first latent frame has one pixel frame, each later one has `scale`.
    """
    latents, caches = yield Call(programs.encode_first, (weights, pixels(0, 1)))
    pieces = [latents]
    for begin in range(1, num_frames, scale):
        latents, caches = yield Call(programs.encode_next, (weights, pixels(begin, begin + scale), caches))
        pieces.append(latents)
    return (yield OnHost(join_frames, tuple(pieces)))
