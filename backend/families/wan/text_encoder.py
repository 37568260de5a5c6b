"""Prompts to embeddings: the checkpoint's tokenizer and UMT5 encoder, cleaned and padded as diffusers' Wan pipelines do.

Wan attends to 512 text positions of which the padded ones are all equal: their embedding is zero. So one position stands
for all of them, and its logit is raised by the logarithm of their number: the same softmax over far fewer positions.
"""

from __future__ import annotations

import dataclasses
import functools
import html
from collections.abc import Mapping
from typing import Any

import ftfy
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import PartitionSpec as P
from transformers import PreTrainedTokenizerBase, UMT5Config, UMT5EncoderModel

from backend.contract.worker import AXES
from backend.families.wan.family import TEXT_TOKENS
from backend.runtime.mesh import Layout
from backend.runtime.torch_modules import call_module

TIED = ("shared.weight", "encoder.embed_tokens.weight")  # two names of the token embedding; a checkpoint may hold either or both
PROMPTS = ("prompt", "negative prompt")  # in the order that `tokenize` takes them
LENGTHS = (32, 64, 128, 256, TEXT_TOKENS)  # compiled lengths; the smallest that holds the prompts is used


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTokens:
    """Token ids and mask [B, L] int32, with the attention `bias` [B, 1, 1, L] float32 that belongs to the embeddings, or None
    if L is the full length and every position counts alike. `notes` say which prompts were cut, a sentence each."""

    ids: np.ndarray
    mask: np.ndarray
    bias: np.ndarray | None
    notes: tuple[str, ...] = ()


class TextEncoder:
    """A tokenizer and an encoder's modules; weights are passed to every call. Without a tokenizer it only embeds."""

    def __init__(
        self,
        config: Mapping[str, Any],
        tokenizer: PreTrainedTokenizerBase | None,
        lengths: tuple[int, ...] = LENGTHS,
    ) -> None:
        with torch.device("meta"):
            self._model = UMT5EncoderModel(UMT5Config(**_without_private(config))).eval()
        self._tokenizer, self._lengths = tokenizer, lengths

    def describe_weights(self, dtype: jnp.dtype, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
        """The weights' shapes and where they rest, without the weights."""
        shapes = {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in self._model.state_dict().items()}
        return layout.describe(shapes, functools.partial(text_weight, layout))

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def describe_tokens(self, count: int) -> TextTokens:
        """Shapes of what `tokenize` returns for `count` prompts at the full length."""
        ids = jax.ShapeDtypeStruct((count, TEXT_TOKENS), jnp.int32)
        return TextTokens(ids=ids, mask=ids, bias=None)

    def tokenize(self, prompts: list[str]) -> TextTokens:
        """The prompts' tokens, padded to the smallest compiled length that holds them all."""
        tokens = [self._tokenizer(clean_prompt(prompt))["input_ids"] for prompt in prompts]
        notes = tuple(_cut_note(name, ids) for name, ids in zip(PROMPTS, tokens, strict=False) if len(ids) > TEXT_TOKENS)
        tokens = [[*ids[: TEXT_TOKENS - 1], ids[-1]] if len(ids) > TEXT_TOKENS else ids for ids in tokens]
        lengths = tuple(len(ids) for ids in tokens)
        width = next(length for length in self._lengths if length > max(lengths) or length == TEXT_TOKENS)
        ids = np.full((len(tokens), width), self._tokenizer.pad_token_id, np.int32)
        for row, prompt_ids in zip(ids, tokens, strict=True):
            row[: len(prompt_ids)] = prompt_ids
        mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
        return TextTokens(ids=ids, mask=mask, bias=_attention_bias(lengths, width), notes=notes)

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
        """Embeddings [B, L, D] of `TextTokens`, zero from each prompt's end on. Pure, to be compiled."""
        hidden = call_module(self._model, weights, _last_hidden_state, ids, mask)
        return hidden * mask[..., None].astype(hidden.dtype)


def _cut_note(name: str, ids: list[int]) -> str:
    return f"The {name} has {len(ids)} tokens, of which the model reads {TEXT_TOKENS}: its end was left out"


def _without_private(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("architectures", "transformers_version")}


def _last_hidden_state(model: UMT5EncoderModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, attention_mask=mask).last_hidden_state


def _attention_bias(lengths: tuple[int, ...], width: int) -> np.ndarray | None:
    """[B, 1, 1, width]: 0 for tokens; the last position stands for all padded ones, the other padded ones are masked."""
    if width == TEXT_TOKENS:
        return None
    bias = np.zeros((len(lengths), 1, 1, width), np.float32)
    for row, length in zip(bias, lengths, strict=True):
        row[0, 0, length:] = -np.inf
        row[0, 0, -1] = np.log(TEXT_TOKENS - length)
    return bias


def clean_prompt(prompt: str) -> str:
    """The prompt with broken Unicode repaired, HTML entities resolved twice and white space folded, as diffusers does for Wan."""
    text = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return " ".join(text.split())


def text_weight(layout: Layout, name: str, shape: tuple[int, ...]) -> P:
    """Where a matrix [out, in] rests: heads and hidden units over all chips, the embedding by its columns; vectors everywhere."""
    if len(shape) != 2 or "relative_attention_bias" in name:
        return P()
    by_columns = name.endswith((".o.weight", ".wo.weight", *TIED))
    divides = shape[by_columns] % layout.mesh.size == 0
    return P() if not divides else P(None, AXES) if by_columns else P(AXES, None)
