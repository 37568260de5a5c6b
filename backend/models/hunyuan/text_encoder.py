"""The text encoder: the checkpoint's tokenizer and the text part of its Qwen2.5-VL, with diffusers' chat template. Text is padded
at the end to one of a few compiled lengths. The encoder is causal, so padding does not change the embeddings of the tokens before
it. The transformer reads the output two layers before the last layer, so later layers are neither built nor loaded."""

import dataclasses
import inspect
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import HunyuanVideo15Pipeline
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import extract_glyph_texts, format_text_input
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel, T5Config, T5EncoderModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding

from backend.checkpoints.json_files import Config
from backend.models.common.modules import Encoder, network_settings
from backend.models.common.text import TextEncoder as TextEncoderBase
from backend.models.common.text import embed_masked, note_cut_prompts, pad_ids
from backend.models.hunyuan.spec import QUOTED_TOKENS, TEXT_TOKENS
from backend.runtime.torch_modules import call_module

_DIFFUSERS_DEFAULTS = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
SYSTEM_MESSAGE: str = _DIFFUSERS_DEFAULTS["system_message"].default
CHAT_TOKENS: int = _DIFFUSERS_DEFAULTS["crop_start"].default  # tokens of the chat template before the prompt, which are cut off
UNUSED_LAYERS: int = _DIFFUSERS_DEFAULTS["num_hidden_layers_to_skip"].default
MOST_TOKENS = CHAT_TOKENS + TEXT_TOKENS
LENGTHS = (160, 256, 512, MOST_TOKENS)  # compiled lengths; the smallest that fits the prompts is used


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTokens:
    """The tokens of prompts.

    Attributes:
        ids: [B, L] int32, padded at the end. The first `CHAT_TOKENS` belong to the chat template.
        counts: [B] int32, the number of tokens of each prompt, without the chat template.
        notes: a sentence for each prompt that was cut."""

    ids: np.ndarray | jax.ShapeDtypeStruct
    counts: np.ndarray | jax.ShapeDtypeStruct
    notes: tuple[str, ...] = ()


class TextEncoder(TextEncoderBase):
    """See `backend.models.common.text.TextEncoder`."""

    _columns = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")

    def __init__(self, config: Config, tokenizer: PreTrainedTokenizerBase | None, lengths: tuple[int, ...] = LENGTHS) -> None:
        settings = Qwen2_5_VLTextConfig(**network_settings(config), attn_implementation="eager")
        settings.num_hidden_layers -= UNUSED_LAYERS
        self._rotation = Qwen2_5_VLRotaryEmbedding(config=settings).inv_freq.numpy()
        with torch.device("meta"):
            self._model = Qwen2_5_VLTextModel(settings).eval()
        self._model.norm = torch.nn.Identity()  # not used, because the transformer reads the output of an earlier layer
        self._tokenizer, self._lengths = tokenizer, lengths

    def tokenize(self, prompts: list[str]) -> TextTokens:
        if self._tokenizer is None:
            shape = jax.ShapeDtypeStruct((len(prompts), MOST_TOKENS), jnp.int32)
            return TextTokens(ids=shape, counts=jax.ShapeDtypeStruct((len(prompts),), jnp.int32))
        chats = format_text_input(prompts, SYSTEM_MESSAGE)
        tokens = self._tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
        notes = note_cut_prompts([len(ids) - CHAT_TOKENS for ids in tokens], TEXT_TOKENS)
        lengths = np.minimum([len(ids) for ids in tokens], MOST_TOKENS)
        width = next(length for length in self._lengths if length >= lengths.max())
        ids = pad_ids([ids[:MOST_TOKENS] for ids in tokens], width, self._tokenizer.pad_token_id or 0)
        return TextTokens(ids=ids, counts=(lengths - CHAT_TOKENS).astype(np.int32), notes=notes)

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array) -> jax.Array:
        buffers = {name: jnp.asarray(self._rotation) for name, _ in self._model.named_buffers()}
        mask = jnp.where(jnp.tril(jnp.ones((ids.shape[1],) * 2, bool)), 0.0, jnp.finfo(jnp.float32).min)
        return call_module(self._model, {**weights, **buffers}, _last_state, ids, mask[None, None])


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuotedTokens:
    """The tokens of the quoted text in prompts. `ids` [B, `QUOTED_TOKENS`] int32 are padded at the end. `counts` [B] int32 are
    the numbers of tokens without padding, 0 for prompts without quoted text."""

    ids: np.ndarray | jax.ShapeDtypeStruct
    counts: np.ndarray | jax.ShapeDtypeStruct


class QuotedTextEncoder(Encoder):
    """The checkpoint's ByT5, which encodes quoted text letter by letter, so that the video can show the text."""

    def __init__(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> None:
        with torch.device("meta"):
            self._model = T5EncoderModel(T5Config(**network_settings(config))).eval()
        self._tokenizer = tokenizer

    def tokenize(self, prompts: list[str]) -> QuotedTokens:
        """Return at most `QUOTED_TOKENS` tokens of the quoted text in each prompt. Without a tokenizer, return only shapes."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            ids = jax.ShapeDtypeStruct((len(prompts), QUOTED_TOKENS), jnp.int32)
            return QuotedTokens(ids=ids, counts=jax.ShapeDtypeStruct((len(prompts),), jnp.int32))
        tokens = [
            [] if quoted is None else tokenizer(quoted, truncation=True, max_length=QUOTED_TOKENS)["input_ids"]
            for quoted in map(extract_glyph_texts, prompts)
        ]
        ids = pad_ids(tokens, QUOTED_TOKENS, tokenizer.pad_token_id)
        return QuotedTokens(ids=ids, counts=np.array([len(row) for row in tokens], np.int32))

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array, counts: jax.Array) -> jax.Array:
        """Embed `QuotedTokens` as [B, `QUOTED_TOKENS`, D], zero for padding. This method is pure, so that jax can compile it."""
        mask = (jnp.arange(ids.shape[1]) < counts[:, None]).astype(jnp.float32)
        return embed_masked(self._model, weights, ids, mask)


def installed_name(name: str) -> str:
    """Convert a tensor's name in a checkpoint to the name in the installed transformers library."""
    return name.removeprefix("model.").removeprefix("language_model.")


def _last_state(model: Qwen2_5_VLTextModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    masks = dict.fromkeys(("full_attention", "sliding_attention"), mask)
    return model(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state
