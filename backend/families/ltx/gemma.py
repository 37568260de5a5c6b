"""What the text encoders of LTX-2's versions share: Gemma's states of all layers, traced with masks and buffers that we make."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

EMBEDDING_SCALE = "embed_tokens.embed_scale"  # a buffer of both

Masks = Mapping[str, torch.Tensor]
"""What is added to the logits [B, 1, L, L], by the layer's type: "full_attention" or "sliding_attention"."""


class Gemma(Protocol):
    """The text part of one generation of Gemma. `model` lies on the meta device; `buffers` are those of its arrays that no
    checkpoint holds, float32, made on the host, by name."""

    model: torch.nn.Module
    buffers: Mapping[str, np.ndarray]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` are those of the text part's config.json."""

    def run_layer(
        self, layer: torch.nn.Module, hidden: torch.Tensor, mask: torch.Tensor, rotation: Any, shared: dict[str, Any]
    ) -> torch.Tensor:
        """One layer on [B, L, D]. `shared` is empty before the first layer; layers may leave there what later ones use."""


def buffers_of(rotation: torch.nn.Module, width: int) -> dict[str, np.ndarray]:
    """A model's buffers by name: its rotary embedding's frequencies, and the factor of its token embeddings, which are `width`
    wide."""
    made = {f"rotary_emb.{name}": value.numpy() for name, value in rotation.named_buffers()}
    return made | {EMBEDDING_SCALE: np.float32(width**0.5)}


def states_of(gemma: Gemma, model: torch.nn.Module, ids: torch.Tensor, masks: Masks) -> torch.Tensor:
    """The states before each layer and after the last, normalised [B, L, D, layers + 1], of token ids [B, L]."""
    hidden, positions = model.embed_tokens(ids), torch.arange(ids.shape[1], device=ids.device)[None]
    kinds, states, shared = model.config.layer_types, [], {}
    rotations = {kind: model.rotary_emb(hidden, positions, kind) for kind in set(kinds)}
    for layer, kind in zip(model.layers, kinds, strict=True):
        states.append(hidden)
        hidden = gemma.run_layer(layer, hidden, masks[kind], rotations[kind], shared)
    return torch.stack([*states, model.norm(hidden)], dim=-1)
