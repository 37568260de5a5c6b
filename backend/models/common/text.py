"""Shared code of the text encoders: padding of tokens, notes about long prompts, T5's embeddings, and the sharding of weights."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import torch
from jax.sharding import PartitionSpec as P
from transformers import PreTrainedTokenizerBase

from backend.models.common.modules import Encoder
from backend.runtime.mesh import Layout
from backend.runtime.torch_modules import call_module
from backend.schemas.worker import AXES

PROMPTS = ("prompt", "negative prompt")  # names for `note_cut_prompts`, in the order in which prompts are tokenized
TIED = ("shared.weight", "encoder.embed_tokens.weight")  # T5's token embedding has two names; a checkpoint has either or both


class TextEncoder(Encoder):
    """A text encoder: its tokenizer and its modules. Without a tokenizer, `tokenize` returns only shapes.

    `_lengths` are the numbers of tokens to which prompts can be padded.
    """

    _columns: tuple[str, ...]
    _tokenizer: PreTrainedTokenizerBase | None
    _lengths: tuple[int, ...]

    @property
    def has_several_lengths(self) -> bool:
        """True if prompts of different lengths may need different programs. False without a tokenizer."""
        return self._tokenizer is not None and len(self._lengths) > 1

    @classmethod
    def weight_spec(cls, layout: Layout, name: str, shape: tuple[int, ...]) -> P:
        """Return the partition of a weight over all chips, by columns if its name has an ending in `_columns`, else by rows.

        Other weights than matrices are replicated, as are matrices that the number of chips does not divide.
        """
        if len(shape) != 2:
            return P()
        by_columns = name.endswith(cls._columns)
        divides = shape[by_columns] % layout.mesh.size == 0
        return P() if not divides else P(None, AXES) if by_columns else P(AXES, None)


def note_cut_prompts(counts: Sequence[int], most: int) -> tuple[str, ...]:
    return tuple(
        f"The {name} has {count} tokens, of which the model reads {most}: its end was left out"
        for name, count in zip(PROMPTS, counts, strict=False)
        if count > most
    )


def pad_ids(tokens: Sequence[Sequence[int]], width: int, padding: int) -> np.ndarray:
    """Pad rows of tokens to [B, width] int32. No row may be longer than `width`."""
    ids = np.full((len(tokens), width), padding, np.int32)
    for row, own in zip(ids, tokens, strict=True):
        row[: len(own)] = own
    return ids


def embed_masked(model: torch.nn.Module, weights: Mapping[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the encoder's last hidden states [B, L, D], zero where `mask` [B, L] is 0. This function is pure."""

    def last_hidden_state(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask).last_hidden_state

    hidden = call_module(model, weights, last_hidden_state, ids, mask)
    return hidden * mask[..., None].astype(hidden.dtype)
