"""Prompts to embeddings: the checkpoint's tokenizer and UMT5 encoder, cleaned and padded as diffusers' Wan pipelines do."""

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
from transformers import PreTrainedTokenizerBase, UMT5Config, UMT5EncoderModel

from backend.torchax_setup import call_module

MAX_SEQUENCE_LENGTH = 512  # Wan's transformer attends to 512 text positions, whatever the prompt's length
LENGTHS = (32, 64, 128, 256, MAX_SEQUENCE_LENGTH)  # compiled lengths; the smallest that holds the prompts is used


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEmbeddings:
    """Embeddings [B, L, D], zero from each prompt's end on, with `bias` [B, 1, 1, L] for the attention to them.

    Wan attends to 512 positions of which the padded ones are all alike, so one stands for them, its logit raised by the
    logarithm of their number: the same softmax over `L` positions. `lengths` are token counts, `truncated` says whether
    a prompt lost its end.
    """

    values: jax.Array
    bias: jax.Array
    lengths: tuple[int, ...]
    truncated: bool

    def padded(self) -> np.ndarray:
        """Embeddings [B, 512, D] as diffusers' pipelines hold them."""
        values = np.asarray(self.values, np.float32)
        return np.pad(values, ((0, 0), (0, MAX_SEQUENCE_LENGTH - values.shape[1]), (0, 0)))


class TextEncoder:
    """A tokenizer and an encoder's modules; the encoder's weights are handed to every call."""

    def __init__(self, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
        with torch.device("meta"):
            self._model = UMT5EncoderModel(UMT5Config(**config)).eval()
        self._tokenizer = tokenizer

    def encode(self, weights: Mapping[str, jax.Array], prompts: list[str]) -> TextEmbeddings:
        """Embed the prompts together."""
        tokens = [self._tokenizer(clean_prompt(prompt))["input_ids"] for prompt in prompts]
        truncated = max(len(ids) for ids in tokens) > MAX_SEQUENCE_LENGTH
        tokens = [[*ids[: MAX_SEQUENCE_LENGTH - 1], ids[-1]] if len(ids) > MAX_SEQUENCE_LENGTH else ids for ids in tokens]
        lengths = tuple(len(ids) for ids in tokens)
        width = next(length for length in LENGTHS if length > max(lengths) or length == MAX_SEQUENCE_LENGTH)
        ids = np.full((len(tokens), width), self._tokenizer.pad_token_id, np.int32)
        for row, prompt_ids in zip(ids, tokens):
            row[: len(prompt_ids)] = prompt_ids
        mask = np.arange(width) < np.array(lengths)[:, None]
        values = self._embed(weights, jnp.asarray(ids), jnp.asarray(mask.astype(np.int32)))
        bias = jnp.asarray(_attention_bias(lengths, width))
        return TextEmbeddings(values=values, bias=bias, lengths=lengths, truncated=truncated)

    @functools.partial(jax.jit, static_argnums=0)
    def _embed(self, weights: Mapping[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
        hidden = call_module(self._model, weights, _last_hidden_state, ids, mask)
        return hidden * mask[..., None].astype(hidden.dtype)


def _last_hidden_state(model: UMT5EncoderModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, attention_mask=mask).last_hidden_state


def _attention_bias(lengths: tuple[int, ...], width: int) -> np.ndarray:
    """[B, 1, 1, width]: 0 for tokens; the last position stands for all padded ones, the other padded ones are masked."""
    bias = np.zeros((len(lengths), 1, 1, width), np.float32)
    if width == MAX_SEQUENCE_LENGTH:
        return bias
    for row, length in zip(bias, lengths):
        row[0, 0, length:] = -np.inf
        row[0, 0, -1] = np.log(MAX_SEQUENCE_LENGTH - length)
    return bias


def clean_prompt(prompt: str) -> str:
    """Broken unicode mended, HTML entities resolved twice, white space folded: diffusers' `prompt_clean` for Wan."""
    mended = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return " ".join(mended.split())
