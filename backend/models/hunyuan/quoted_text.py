"""The encoder of quoted text in a prompt: the checkpoint's ByT5, which encodes letter by letter so that the video can show
the text."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import extract_glyph_texts
from transformers import PreTrainedTokenizerBase, T5Config, T5EncoderModel

from backend.checkpoints.json_files import Config
from backend.models.common.modules import Encoder, network_settings
from backend.models.common.text import embed_masked, pad_ids
from backend.models.hunyuan.spec import QUOTED_TOKENS


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuotedTokens:
    """The tokens of the quoted text in prompts.

    `ids` [B, `QUOTED_TOKENS`] int32 are padded at the end. `counts` [B] int32 are the numbers of tokens without padding, 0 for
    prompts without quoted text.
    """

    ids: np.ndarray | jax.ShapeDtypeStruct
    counts: np.ndarray | jax.ShapeDtypeStruct


class QuotedTextEncoder(Encoder):
    """The checkpoint's tokenizer and encoder for quoted text. Methods take the weights as an argument."""

    def __init__(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> None:
        with torch.device("meta"):
            self._model = T5EncoderModel(T5Config(**network_settings(config))).eval()
        self._tokenizer = tokenizer

    def tokenize(self, prompts: list[str]) -> QuotedTokens:
        """Return at most `QUOTED_TOKENS` tokens of the quoted text in each prompt. Without a tokenizer, return only shapes."""
        if self._tokenizer is None:
            ids = jax.ShapeDtypeStruct((len(prompts), QUOTED_TOKENS), jnp.int32)
            return QuotedTokens(ids=ids, counts=jax.ShapeDtypeStruct((len(prompts),), jnp.int32))
        tokens = [self._tokenize_quoted(quoted) if quoted is not None else [] for quoted in map(extract_glyph_texts, prompts)]
        ids = pad_ids(tokens, QUOTED_TOKENS, self._tokenizer.pad_token_id)
        return QuotedTokens(ids=ids, counts=np.array([len(row) for row in tokens], np.int32))

    def _tokenize_quoted(self, quoted: str) -> list[int]:
        assert self._tokenizer is not None, "`tokenize` calls this only with a tokenizer"
        return self._tokenizer(quoted, truncation=True, max_length=QUOTED_TOKENS)["input_ids"]

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array, counts: jax.Array) -> jax.Array:
        """Embed `QuotedTokens` as [B, `QUOTED_TOKENS`, D], zero for padding. This method is pure, so that jax can compile it."""
        mask = (jnp.arange(ids.shape[1]) < counts[:, None]).astype(jnp.float32)
        return embed_masked(self._model, weights, ids, mask)
