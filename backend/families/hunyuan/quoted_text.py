"""What stands in quotes in a prompt, letter by letter: the checkpoint's ByT5, whose tokens let the model write it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import extract_glyph_texts
from transformers import PreTrainedTokenizerBase, T5Config, T5EncoderModel

from backend.families.hunyuan.family import NOT_SETTINGS, QUOTED_TOKENS
from backend.runtime.mesh import Layout
from backend.runtime.torch_modules import call_module

TIED = ("shared.weight", "encoder.embed_tokens.weight")  # two names of the token embedding; a checkpoint may hold either or both


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuotedTokens:
    """Token ids [B, `QUOTED_TOKENS`] int32, padded at the end, and how many count, [B] int32: none if nothing is in quotes."""

    ids: np.ndarray
    counts: np.ndarray


class QuotedTextEncoder:
    """A tokenizer and an encoder's modules; weights are passed to every call. Without a tokenizer it only embeds."""

    def __init__(self, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> None:
        entries = {name: value for name, value in config.items() if name not in NOT_SETTINGS}
        with torch.device("meta"):
            self._model = T5EncoderModel(T5Config(**entries)).eval()
        self._tokenizer = tokenizer

    def describe_weights(self, dtype: jnp.dtype, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
        """The weights' shapes and where they rest, without the weights."""
        shapes = {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in self._model.state_dict().items()}
        return layout.describe(shapes, layout.outer_weight)

    def tokenize(self, prompts: list[str]) -> QuotedTokens:
        """The tokens of what each prompt has in quotes, at most `QUOTED_TOKENS`; their shapes without a tokenizer."""
        if self._tokenizer is None:
            ids = jax.ShapeDtypeStruct((len(prompts), QUOTED_TOKENS), jnp.int32)
            return QuotedTokens(ids=ids, counts=jax.ShapeDtypeStruct((len(prompts),), jnp.int32))
        ids = np.full((len(prompts), QUOTED_TOKENS), self._tokenizer.pad_token_id, np.int32)
        counts = np.zeros(len(prompts), np.int32)
        for index, quoted in enumerate(map(extract_glyph_texts, prompts)):
            if quoted is not None:
                tokens = self._tokenizer(quoted, truncation=True, max_length=QUOTED_TOKENS)["input_ids"]
                ids[index, : len(tokens)], counts[index] = tokens, len(tokens)
        return QuotedTokens(ids=ids, counts=counts)

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array, counts: jax.Array) -> jax.Array:
        """Embeddings [B, `QUOTED_TOKENS`, D] of `QuotedTokens`, zero from the last one that counts on. Pure, to be compiled."""
        mask = (jnp.arange(ids.shape[1]) < counts[:, None]).astype(jnp.float32)
        hidden = call_module(self._model, weights, _last_hidden_state, ids, mask)
        return hidden * mask[..., None].astype(hidden.dtype)


def _last_hidden_state(model: T5EncoderModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, attention_mask=mask).last_hidden_state
