"""Prompts as rows of tokens, and where the weights of a text encoder rest."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import PartitionSpec as P
from transformers import PreTrainedTokenizerBase

from backend.models.common.modules import Encoder
from backend.runtime.mesh import Layout
from backend.schemas.worker import AXES

PROMPTS = ("prompt", "negative prompt")  # in the order that `tokenize` takes them
TIED = ("shared.weight", "encoder.embed_tokens.weight")  # two names of T5's token embedding; a checkpoint may hold either or both


class TextEncoder(Encoder):
    """A tokenizer and an encoder's modules. Without a tokenizer it only embeds. `_columns` are the endings of matrices that are
    cut by their columns, `_lengths` those that text is padded to."""

    _columns: tuple[str, ...]
    _tokenizer: PreTrainedTokenizerBase | None
    _lengths: tuple[int, ...]

    @property
    def has_lengths(self) -> bool:
        """Whether prompts of different length may need different programs, as far as their lengths are known."""
        return self._tokenizer is not None and len(self._lengths) > 1

    @classmethod
    def place(cls, layout: Layout, name: str, shape: tuple[int, ...]) -> P:
        """A matrix [out, in]: heads and hidden units over all chips, the embedding by its columns; vectors everywhere."""
        if len(shape) != 2:
            return P()
        by_columns = name.endswith(cls._columns)
        divides = shape[by_columns] % layout.mesh.size == 0
        return P() if not divides else P(None, AXES) if by_columns else P(AXES, None)


def cut_notes(counts: Sequence[int], most: int) -> tuple[str, ...]:
    """Which of the prompts with so many tokens are cut, a sentence each."""
    return tuple(
        f"The {name} has {count} tokens, of which the model reads {most}: its end was left out"
        for name, count in zip(PROMPTS, counts, strict=False)
        if count > most
    )


def padded_ids(tokens: Sequence[Sequence[int]], width: int, padding: int) -> np.ndarray:
    """[B, width] int32 of rows of tokens, none of them longer."""
    ids = np.full((len(tokens), width), padding, np.int32)
    for row, own in zip(ids, tokens, strict=True):
        row[: len(own)] = own
    return ids
