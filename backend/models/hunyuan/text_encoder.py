"""Prompts to embeddings: the checkpoint's tokenizer and the text part of its Qwen2.5-VL, in the chat that diffusers makes.

The encoder attends causally, so padding at the end changes nothing before it: text is padded to one of a few compiled lengths.
The transformer takes the state two layers before the last, so the layers after it are neither built nor read.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import HunyuanVideo15Pipeline
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding

from backend.models.common.modules import settings_of
from backend.models.common.text import TextEncoder as Tokenized
from backend.models.common.text import cut_notes, padded_ids
from backend.models.hunyuan.spec import TEXT_TOKENS
from backend.runtime.torch_modules import call_module

_OF_DIFFUSERS = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
SYSTEM_MESSAGE: str = _OF_DIFFUSERS["system_message"].default
CHAT_TOKENS: int = _OF_DIFFUSERS["crop_start"].default  # before the prompt's own; the transformer does not see them
UNUSED_LAYERS: int = _OF_DIFFUSERS["num_hidden_layers_to_skip"].default
MOST_TOKENS = CHAT_TOKENS + TEXT_TOKENS
LENGTHS = (160, 256, 512, MOST_TOKENS)  # compiled lengths; the smallest that holds the prompts is used


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTokens:
    """Token ids [B, L] int32, padded at the end, and how many are a prompt's own, [B] int32, after the first `CHAT_TOKENS`.
    `notes` say which prompts were cut, a sentence each."""

    ids: np.ndarray | jax.ShapeDtypeStruct
    counts: np.ndarray | jax.ShapeDtypeStruct
    notes: tuple[str, ...] = ()


class TextEncoder(Tokenized):
    """See `backend.models.common.text.TextEncoder`."""

    _columns = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")

    def __init__(
        self, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None, lengths: tuple[int, ...] = LENGTHS
    ) -> None:
        settings = Qwen2_5_VLTextConfig(**settings_of(config), attn_implementation="eager")
        settings.num_hidden_layers -= UNUSED_LAYERS
        self._rotation = Qwen2_5_VLRotaryEmbedding(config=settings).inv_freq.numpy()
        with torch.device("meta"):
            self._model = Qwen2_5_VLTextModel(settings).eval()
        self._model.norm = torch.nn.Identity()  # it follows the layers that are not used
        self._tokenizer, self._lengths = tokenizer, lengths

    def tokenize(self, prompts: list[str]) -> TextTokens:
        """The prompts' tokens, padded to the smallest compiled length that holds them all; their shapes without a tokenizer."""
        if self._tokenizer is None:
            shape = jax.ShapeDtypeStruct((len(prompts), MOST_TOKENS), jnp.int32)
            return TextTokens(ids=shape, counts=jax.ShapeDtypeStruct((len(prompts),), jnp.int32))
        chats = format_text_input(prompts, SYSTEM_MESSAGE)
        tokens = self._tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
        notes = cut_notes([len(ids) - CHAT_TOKENS for ids in tokens], TEXT_TOKENS)
        lengths = np.minimum([len(ids) for ids in tokens], MOST_TOKENS)
        width = next(length for length in self._lengths if length >= lengths.max())
        ids = padded_ids([ids[:MOST_TOKENS] for ids in tokens], width, self._tokenizer.pad_token_id or 0)
        return TextTokens(ids=ids, counts=(lengths - CHAT_TOKENS).astype(np.int32), notes=notes)

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array) -> jax.Array:
        """Embeddings [B, L, D] of `TextTokens`. Pure, to be compiled."""
        buffers = {name: jnp.asarray(self._rotation) for name, _ in self._model.named_buffers()}
        mask = jnp.where(jnp.tril(jnp.ones((ids.shape[1],) * 2, bool)), 0.0, jnp.finfo(jnp.float32).min)
        return call_module(self._model, {**weights, **buffers}, _last_state, ids, mask[None, None])


def installed_name(name: str) -> str:
    """A tensor's name in the installed library, from the one in a file: the text part may be a part of a larger model there."""
    return name.removeprefix("model.").removeprefix("language_model.")


def _last_state(model: Qwen2_5_VLTextModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    masks = dict.fromkeys(("full_attention", "sliding_attention"), mask)
    return model(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state
