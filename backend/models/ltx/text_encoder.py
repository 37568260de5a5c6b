"""The text encoder and the connectors. Together they turn prompts into embeddings for the video and for the audio. The hidden
states of all layers of the text encoder take 400 MB for each prompt. Therefore one program runs the text encoder and the
connectors, and returns only the embeddings. Text is padded on the left to one length, as in diffusers' pipelines."""

import dataclasses
import functools
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from transformers import PreTrainedTokenizerBase

from backend.checkpoints.json_files import Config
from backend.models.common.modules import Encoder, network_settings
from backend.models.common.text import TextEncoder as TextEncoderBase
from backend.models.common.text import note_cut_prompts
from backend.models.ltx.attention import rotate_heads
from backend.models.ltx.gemma import EMBEDDING_SCALE, Gemma3, Gemma4, collect_states
from backend.models.ltx.spec import GEMMA_4, TEXT_TOKENS
from backend.runtime.torch_modules import call_module, torchax


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTokens:
    """The tokens of prompts.

    Attributes:
        ids: [B, L] int32, padded on the left.
        mask: [B, L] int32, 1 for tokens of the prompt, 0 for padding.
        notes: a sentence for each prompt that was cut."""

    ids: np.ndarray | jax.ShapeDtypeStruct
    mask: np.ndarray | jax.ShapeDtypeStruct
    notes: tuple[str, ...] = ()


class TextEncoder(TextEncoderBase):
    """See `backend.models.common.text.TextEncoder`. `config` determines the version of Gemma. Text is padded to `length`, or to
    the tokenizer's maximum length if that is shorter."""

    _columns = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")

    def __init__(self, config: Config, tokenizer: PreTrainedTokenizerBase | None, length: int = TEXT_TOKENS) -> None:
        kind = Gemma4 if config.get("model_type") == GEMMA_4 else Gemma3
        self._gemma = kind(network_settings(config.get("text_config", config)))
        self._model = self._gemma.model
        longest = length if tokenizer is None else min(length, tokenizer.model_max_length)
        self._tokenizer, self._lengths, self.length = tokenizer, (longest,), longest

    def tokenize(self, prompts: list[str]) -> TextTokens:
        length = self.length
        if self._tokenizer is None:
            shape = jax.ShapeDtypeStruct((len(prompts), length), jnp.int32)
            return TextTokens(ids=shape, mask=shape)
        tokens = [self._tokenizer(prompt.strip(), add_special_tokens=True).input_ids for prompt in prompts]
        notes = note_cut_prompts([len(ids) for ids in tokens], length)
        pad = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else self._tokenizer.eos_token_id
        kept = [np.asarray(ids[:length], np.int32) for ids in tokens]
        ids = np.stack([np.pad(row, (length - len(row), 0), constant_values=pad) for row in kept])
        mask = np.stack([np.pad(np.ones(len(row), np.int32), (length - len(row), 0)) for row in kept])
        return TextTokens(ids=ids, mask=mask, notes=notes)

    def states(self, weights: Mapping[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
        """Return the hidden states of `TextTokens` before each layer and after the last layer, [B, L, D, layers + 1]."""
        dtype = weights["norm.weight"].dtype
        buffers = {name: jnp.asarray(value) for name, value in self._gemma.buffers.items()}
        buffers[EMBEDDING_SCALE] = buffers[EMBEDDING_SCALE].astype(dtype)
        row, column = jnp.arange(ids.shape[1])[:, None], jnp.arange(ids.shape[1])[None]
        sees = (column <= row) & (mask[:, None] > 0)
        near = sees & (row - column < self._model.config.sliding_window)
        masks = {
            name: jnp.where(seen[:, None], 0, jnp.finfo(dtype).min).astype(dtype)
            for name, seen in (("full_attention", sees), ("sliding_attention", near))
        }
        run = functools.partial(collect_states, self._gemma)
        return call_module(self._model, {**weights, **buffers}, run, ids, masks)


class Connectors(Encoder):
    """The connectors, which turn the text encoder's hidden states into embeddings for video and audio."""

    def __init__(self, config: Config, length: int = TEXT_TOKENS) -> None:
        with torch.device("meta"):
            self._model: ModelMixin = LTX2TextConnectors.from_config(dict(config)).eval()
        for connector in (self._model.video_connector, self._model.audio_connector):
            with torch.device("cpu"), torch.no_grad():
                connector.rope = _FixedTables(connector.rope(1, length, torch.device("cpu")))
            for block in connector.transformer_blocks:
                block.attn1.set_processor(_TextAttention())

    def embed(self, weights: Mapping[str, jax.Array], states: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute the embeddings [B, L, D] for the video and [B, L, D'] for the audio from the hidden states."""
        return call_module(
            self._model, weights, lambda model, states, mask: model(states, mask, padding_side="left")[:2], states, mask
        )


class _FixedTables(torch.nn.Module):
    """A replacement for a connector's rotary embedding, with constant tables that PyTorch computed in float64."""

    def __init__(self, tables: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__()
        self._tables = tuple(table.numpy() for table in tables)

    def forward(self, batch_size: int, length: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        return tuple(torchax().interop.torch_view(jnp.asarray(table)) for table in self._tables)


class _TextAttention:
    """The attention processor of the connectors. Each chip has all tokens of the text. It replaces diffusers' own processor,
    which changes queries and keys in place. Jax arrays cannot be changed in place."""

    def __call__(
        self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, query_rotary_emb=None, key_rotary_emb=None
    ) -> torch.Tensor:
        interop = torchax().interop
        heads = [
            interop.jax_view(projected).reshape(*hidden_states.shape[:2], attn.heads, -1)
            for projected in (
                attn.norm_q(attn.to_q(hidden_states)),
                attn.norm_k(attn.to_k(hidden_states)),
                attn.to_v(hidden_states),
            )
        ]
        assert query_rotary_emb is not None, "the connectors' tokens have a rotary embedding"
        tables = tuple(interop.jax_view(table)[0].swapaxes(0, 1) for table in query_rotary_emb)
        query, key, value = rotate_heads(heads[0], tables), rotate_heads(heads[1], tables), heads[2]
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * query.shape[3] ** -0.5
        if attention_mask is not None:
            logits = logits + interop.jax_view(attention_mask).astype(jnp.float32)
        shares = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
        made = interop.torch_view(jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(*query.shape[:2], -1))
        if attn.to_gate_logits is not None:
            gates = 2.0 * torch.sigmoid(attn.to_gate_logits(hidden_states))
            made = (made.unflatten(2, (attn.heads, -1)) * gates.unsqueeze(-1)).flatten(2, 3)
        return attn.to_out[0](made)


_OUTSIDE = re.compile(r"^(model\.)?(language_model\.)?(model\.)?(?=layers\.|norm\.|embed_tokens\.)")


def installed_name(name: str) -> str:
    """Convert a tensor's name in a file to its name in the installed transformers library."""
    return _OUTSIDE.sub("", name)
