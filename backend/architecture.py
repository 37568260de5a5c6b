"""The networks' configurations, as diffusers and transformers write them: what is known of a model without its weights."""

from __future__ import annotations

import dataclasses
from typing import Any

PARTS = ("transformer", "vae", "text_encoder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The three `config.json` of a checkpoint."""

    transformer: dict[str, Any]
    vae: dict[str, Any]
    text_encoder: dict[str, Any]

    @property
    def heads(self) -> int:
        return self.transformer["num_attention_heads"]

    @property
    def num_layers(self) -> int:
        return self.transformer["num_layers"]
