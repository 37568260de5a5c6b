"""The denoiser's inputs besides noise: the prompts' embeddings and the picture, as host arrays by name.

Names, for the prompt and, after "negative_", for the negative prompt: `prompt_embeds` [1, 1000, D] and `prompt_embeds_mask`
[1, 1000], 1 for tokens that count; `prompt_embeds_2` [1, 256, D'] and `prompt_embeds_mask_2` the same for the text in quotes, as
diffusers' pipelines hold them, zero where nothing counts. For a picture: `image_embeds` [1, tokens, D''], the image encoder's
output, and `first_frame` [1, C, 1, H, W], its latents. All float32.

Functions that take `xp` compute with numpy's functions, or with jax.numpy's where only shapes are known.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.hunyuan.spec import TEXT_TOKENS
from backend.models.hunyuan.text_encoder import CHAT_TOKENS
from backend.models.hunyuan.transformer import Tokens

PREFIXES = ("", "negative_")


def text_conditions(xp: Any, embeddings: Any, counts: Any, letters: Any, letter_counts: Any) -> dict[str, Any]:
    """The arrays of all prompts by name, from the encoders' output [B, L, D] and [B, Q, D'] and the numbers of tokens [B]."""
    own = embeddings[:, CHAT_TOKENS:].astype(np.float32)
    own = xp.pad(own, ((0, 0), (0, TEXT_TOKENS - own.shape[1]), (0, 0)))
    mask = _mask(xp, counts, TEXT_TOKENS)
    arrays = {
        "prompt_embeds": own * mask[:, :, None],
        "prompt_embeds_mask": mask,
        "prompt_embeds_2": letters.astype(np.float32),
        "prompt_embeds_mask_2": _mask(xp, letter_counts, letters.shape[1]),
    }
    return {
        prefix + name: array[row : row + 1]
        for row, prefix in enumerate(PREFIXES[: len(embeddings)])
        for name, array in arrays.items()
    }


def beside(xp: Any, *branches: Mapping[str, Any], num_seen: int, length: int, dtype: jnp.dtype) -> Tokens:
    """Which tokens stand beside the video's, from each guidance branch's arrays: `num_seen` of the picture, and of the prompt and
    its text in quotes those that count, with padding to `length`."""
    prompt, mask, quoted = (
        xp.concatenate([branch[name] for branch in branches])
        for name in ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_mask_2")
    )
    counting = xp.concatenate([xp.ones((len(branches), num_seen), np.float32), quoted, mask], axis=1)
    return Tokens(
        prompt=prompt.astype(dtype),
        prompt_counts=mask.sum(1).astype(np.int32),
        order=xp.argsort(1 - counting, axis=1, stable=True).astype(np.int32)[:, : num_seen + length],
        counts=counting.sum(1).astype(np.int32),
    )


def most_told(*branches: Mapping[str, Any]) -> int | None:
    """How many tokens of the prompt and of its text in quotes count in the branch that has most; None where only shapes are
    known."""
    masks = [(branch["prompt_embeds_mask"], branch["prompt_embeds_mask_2"]) for branch in branches]
    if any(isinstance(mask, jax.ShapeDtypeStruct) for both in masks for mask in both):
        return None
    return max(sum(int(np.asarray(mask).sum()) for mask in both) for both in masks)


def quoted_embeddings(xp: Any, *branches: Mapping[str, Any]) -> jax.Array:
    """[B, Q, D'] of all guidance branches."""
    return xp.concatenate([branch["prompt_embeds_2"] for branch in branches])


def _mask(xp: Any, counts: Any, length: int) -> Any:
    """[B, length] float32, 1 for the first `counts` [B]."""
    return (xp.arange(length) < counts[:, None]).astype(np.float32)
