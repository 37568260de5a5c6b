"""The SigLIP vision encoder of HunyuanVideo 1.5's image-to-video models: a picture to tokens that stand beside the video's."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from PIL import Image
from transformers import SiglipVisionConfig, SiglipVisionModel
from transformers.image_processing_utils import BaseImageProcessor

from backend.models.common.modules import Encoder, settings_of
from backend.models.hunyuan.transformer import norm_in_float32
from backend.runtime.torch_modules import call_module


class ImageEncoder(Encoder):
    """A preprocessor and an encoder's modules; weights are passed to every call. Without a preprocessor it only embeds."""

    def __init__(self, config: Mapping[str, Any], processor: BaseImageProcessor | None) -> None:
        settings = SiglipVisionConfig(**settings_of(config) | {"vision_use_head": False})  # what it pools is not used
        with torch.device("meta"):
            self._model = SiglipVisionModel(settings).eval()
        self._model.embeddings.patch_embedding.padding = (0, 0)  # it says "valid", which torchax does not know
        norm_in_float32(self._model)
        self._processor, self._size = processor, settings.image_size
        self._places = (settings.image_size // settings.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Tokens per picture."""
        return self._places

    def preprocess(self, image: Image.Image) -> np.ndarray:
        """Pixels [1, 3, height, width] as the checkpoint's own preprocessor makes them; without one, zeros of that shape."""
        if self._processor is None:
            return np.zeros((1, 3, self._size, self._size), np.float32)
        return self._processor(images=image, do_resize=True, do_convert_rgb=True, return_tensors="np")["pixel_values"]

    def embed(self, weights: Mapping[str, jax.Array], pixels: jax.Array) -> jax.Array:
        """Tokens [1, N, width] of `preprocess`ed pixels. Pure, to be compiled."""
        buffers = {name: jnp.arange(self._places)[None] for name, _ in self._model.named_buffers()}
        return call_module(self._model, {**weights, **buffers}, _last_hidden_state, pixels)


def _last_hidden_state(model: SiglipVisionModel, pixels: torch.Tensor) -> torch.Tensor:
    return model(pixel_values=pixels).last_hidden_state
