"""Gemma 4 in its unified form, the text encoder of LTX-2.5. Pictures and sound, which it could read too, are left out.

Its layers of full attention have wider heads and fewer keys than the others, take their keys for values, and turn a quarter of
each head's channels; every layer ends with a factor of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Gemma4UnifiedTextConfig, Gemma4UnifiedTextModel
from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedTextRotaryEmbedding

from backend.families.ltx.gemma import buffers_of


class Gemma4:
    """See `Gemma`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        config = Gemma4UnifiedTextConfig(**settings, attn_implementation="eager")
        self.buffers = buffers_of(Gemma4UnifiedTextRotaryEmbedding(config), config.hidden_size)
        with torch.device("meta"):
            self.model = Gemma4UnifiedTextModel(config).eval()

    def run_layer(
        self, layer: torch.nn.Module, hidden: torch.Tensor, mask: torch.Tensor, rotation: Any, shared: dict[str, Any]
    ) -> torch.Tensor:
        """See `Gemma`: the last layers may take the keys and values of earlier ones, which leave them in `shared`."""
        return layer(hidden, shared_kv_states=shared, position_embeddings=rotation, attention_mask=mask)
