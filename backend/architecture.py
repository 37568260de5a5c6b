"""The networks' configurations, as diffusers and transformers write them: what is known of a model without its weights."""

from __future__ import annotations

import dataclasses
from typing import Any

PARTS = ("transformer", "vae", "text_encoder")
IMAGE_ENCODER = "image_encoder"
VAE_SCALES = (8, 4)  # Wan 2.1's; its published vae/config.json is older than the entries that name them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The `config.json` of a checkpoint's networks; two experts share one. `image_encoder` is None where there is none."""

    transformer: dict[str, Any]
    vae: dict[str, Any]
    text_encoder: dict[str, Any]
    image_encoder: dict[str, Any] | None = None

    @property
    def heads(self) -> int:
        return self.transformer["num_attention_heads"]

    @property
    def num_layers(self) -> int:
        return self.transformer["num_layers"]

    def block_matrix_bytes(self, itemsize: int) -> dict[str, int]:
        """Bytes of the matrices in one of the transformer's blocks, by name within the block."""
        width = self.heads * self.transformer["attention_head_dim"]
        square, wide = width * width * itemsize, width * self.transformer["ffn_dim"] * itemsize
        attention = {f"attn{index}.{part}.weight": square for index in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")}
        return attention | {"ffn.net.0.proj.weight": wide, "ffn.net.2.weight": wide}

    @property
    def latent_channels(self) -> int:
        return self.vae["z_dim"]

    @property
    def scales(self) -> tuple[int, int]:
        """Pixels a latent, in space and in time."""
        space, time = VAE_SCALES
        return self.vae.get("scale_factor_spatial", space), self.vae.get("scale_factor_temporal", time)
