"""Gemma 3, the text encoder of LTX-2.0 and 2.3."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Gemma3TextConfig, Gemma3TextModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from backend.families.ltx.gemma import buffers_of


class Gemma3:
    """See `Gemma`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        config = Gemma3TextConfig(**settings, attn_implementation="eager")
        self.buffers = buffers_of(Gemma3RotaryEmbedding(config), config.hidden_size)
        with torch.device("meta"):
            self.model = Gemma3TextModel(config).eval()

    def run_layer(
        self, layer: torch.nn.Module, hidden: torch.Tensor, mask: torch.Tensor, rotation: Any, shared: dict[str, Any]
    ) -> torch.Tensor:
        """See `Gemma`: layers share nothing."""
        return layer(hidden, attention_mask=mask, position_embeddings=rotation)
