"""The text encoders of LTX-2's versions: transformers' Gemma models. They return the hidden states of all layers."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from transformers import Gemma3TextConfig, Gemma3TextModel, Gemma4UnifiedTextConfig, Gemma4UnifiedTextModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedTextRotaryEmbedding

from backend.checkpoints.json_files import Config

EMBEDDING_SCALE = "embed_tokens.embed_scale"  # name of the buffer with the factor of the token embeddings

Masks = Mapping[str, torch.Tensor]
"""Masks [B, 1, L, L] that are added to the attention's logits, by type of the layer: "full_attention" or "sliding_attention"."""


class Gemma:
    """The text part of one version of Gemma.

    Attributes:
        model: the modules on the meta device.
        buffers: the arrays that the modules need and checkpoints do not have, by name: the frequencies of the rotary embedding,
            and the factor of the token embeddings. They are float32 host arrays."""

    _classes: ClassVar[tuple[type, type, type]]  # transformers' configuration, rotary embedding and model
    takes_shared = False  # whether layers store keys and values in one dictionary, for later layers

    def __init__(self, settings: Config) -> None:
        configuration, rotation, model = self._classes
        config = configuration(**settings, attn_implementation="eager")
        self.buffers = {f"rotary_emb.{name}": value.numpy() for name, value in rotation(config).named_buffers()}
        self.buffers[EMBEDDING_SCALE] = np.float32(config.hidden_size**0.5)
        with torch.device("meta"):
            self.model = model(config).eval()


class Gemma3(Gemma):
    """Gemma 3, the text encoder of LTX-2.0 and 2.3. No layer reads keys and values of another layer."""

    _classes = Gemma3TextConfig, Gemma3RotaryEmbedding, Gemma3TextModel


class Gemma4(Gemma):
    """Gemma 4 in its unified form, the text encoder of LTX-2.5. Its image and audio parts are not used. Layers with full
    attention have wider heads and fewer key heads than the other layers. They use keys as values, and rotate a quarter of each
    head's channels. Every layer multiplies its result by a learned factor."""

    _classes = Gemma4UnifiedTextConfig, Gemma4UnifiedTextRotaryEmbedding, Gemma4UnifiedTextModel
    takes_shared = True


def collect_states(gemma: Gemma, model: torch.nn.Module, ids: torch.Tensor, masks: Masks) -> torch.Tensor:
    """Return the hidden states [B, L, D, layers + 1] of token ids [B, L]: before each layer, and after the last norm."""
    hidden, positions = model.embed_tokens(ids), torch.arange(ids.shape[1], device=ids.device)[None]
    kinds, states = model.config.layer_types, []
    more: dict[str, object] = {"shared_kv_states": {}} if gemma.takes_shared else {}
    rotations = {kind: model.rotary_emb(hidden, positions, kind) for kind in dict.fromkeys(kinds)}
    for layer, kind in zip(model.layers, kinds, strict=True):
        states.append(hidden)
        hidden = layer(hidden, attention_mask=masks[kind], position_embeddings=rotations[kind], **more)
    return torch.stack([*states, model.norm(hidden)], dim=-1)
