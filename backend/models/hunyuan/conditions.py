"""The denoiser's inputs besides noise: embeddings of the prompts and the image, as float32 host arrays by name. For the negative
prompt the names have the prefix "negative_".

- `prompt_embeds` [1, 1000, D] and `prompt_embeds_mask` [1, 1000], which is 1 for the prompt's tokens. Padding is zero.
- `prompt_embeds_2` [1, 256, D'] and `prompt_embeds_mask_2`, the same for the text in quotes.
- `image_embeds` [1, tokens, D''], the image encoder's output.
- `first_frame` [1, C, 1, H, W], the latents of the image.

The argument `xp` is the module that computes: numpy, or jax.numpy where only the shapes of the results are computed."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.hunyuan.spec import TEXT_TOKENS
from backend.models.hunyuan.text_encoder import CHAT_TOKENS
from backend.models.hunyuan.transformer import Tokens

PREFIXES = ("", "negative_")


def text_conditions(xp: ModuleType, embeddings: Any, counts: Any, letters: Any, letter_counts: Any) -> dict[str, Any]:
    """Return the arrays of all prompts by name.

    Args:
        embeddings: output of the text encoder, [B, L, D]. It starts with the tokens of the chat template.
        counts: numbers of tokens of the prompts, [B]. The chat template is not counted.
        letters: output of the encoder of quoted text, [B, Q, D'].
        letter_counts: numbers of tokens of the quoted texts, [B]."""
    own = embeddings[:, CHAT_TOKENS:].astype(np.float32)
    own = xp.pad(own, ((0, 0), (0, TEXT_TOKENS - own.shape[1]), (0, 0)))
    mask, quoted_mask = (  # [B, length], 1 for the first tokens
        (xp.arange(length) < number[:, None]).astype(np.float32)
        for number, length in ((counts, TEXT_TOKENS), (letter_counts, letters.shape[1]))
    )
    arrays = {
        "prompt_embeds": own * mask[:, :, None],
        "prompt_embeds_mask": mask,
        "prompt_embeds_2": letters.astype(np.float32),
        "prompt_embeds_mask_2": quoted_mask,
    }
    return {
        prefix + name: array[row : row + 1]
        for row, prefix in enumerate(PREFIXES[: len(embeddings)])
        for name, array in arrays.items()
    }


def make_context_tokens(
    xp: ModuleType, *branches: Mapping[str, object], num_seen: int, length: int, dtype: jnp.dtype, multiple: int = 1
) -> Tokens:
    """Return the prompts' embeddings and the order of the context tokens, for all guidance branches. The order is: `num_seen`
    tokens of the image, the tokens of the quoted text, the tokens of the prompt, then padding. Quoted text and prompt together
    have `length` tokens with padding. Further padding makes the number of all tokens a multiple of `multiple`."""
    prompt, mask, quoted = (
        xp.concatenate([branch[name] for branch in branches])
        for name in ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_mask_2")
    )
    counting = xp.concatenate([xp.ones((len(branches), num_seen), np.float32), quoted, mask], axis=1)
    total = num_seen + length + -(num_seen + length) % multiple
    order = xp.argsort(1 - counting, axis=1, stable=True).astype(np.int32)[:, :total]
    if order.shape[1] < total:  # the index of added padding is arbitrary, because the transformer sets padding to 0
        order = xp.pad(order, ((0, 0), (0, total - order.shape[1])))
    return Tokens(
        prompt=prompt.astype(dtype),
        prompt_counts=mask.sum(1).astype(np.int32),
        order=order,
        counts=counting.sum(1).astype(np.int32),
    )


def count_most_tokens(*branches: Mapping[str, object]) -> int | None:
    """Return the largest number of tokens of prompt and quoted text together, without padding, in a guidance branch. Returns None
    if only shapes are known."""
    masks = [(branch["prompt_embeds_mask"], branch["prompt_embeds_mask_2"]) for branch in branches]
    if any(isinstance(mask, jax.ShapeDtypeStruct) for both in masks for mask in both):
        return None
    return max(sum(int(np.asarray(mask).sum()) for mask in both) for both in masks)


def join_quoted_embeddings(xp: ModuleType, *branches: Mapping[str, object]) -> jax.Array:
    return xp.concatenate([branch["prompt_embeds_2"] for branch in branches])
