"""The CLIP vision encoder of Wan 2.1's image-to-video models: pictures to the tokens that the cross-attention attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModel
from transformers.image_processing_utils import BaseImageProcessor

from backend.runtime.mesh import Layout
from backend.runtime.torch_modules import call_module

OLD_PREFIX = "vision_model."  # before each name in files written by transformers 4, such as Wan 2.1's; transformers 5 writes none
HIDDEN_STATE = -2  # Wan reads the second-to-last layer


def short_name(name: str) -> str:
    """A tensor's name in the installed library, from the one in a file of any age."""
    return name.removeprefix(OLD_PREFIX)


class ImageEncoder:
    """A preprocessor and an encoder's modules; weights are passed to every call. Without a preprocessor it only embeds."""

    def __init__(self, config: Mapping[str, Any], processor: BaseImageProcessor | None) -> None:
        settings = CLIPVisionConfig(**{name: value for name, value in config.items() if name != "architectures"})
        with torch.device("meta"):
            self._model = CLIPVisionModel(settings).eval()
        self._processor = processor
        self._size, self._patch, self._width = settings.image_size, settings.patch_size, settings.hidden_size
        self._buffers = [name for name, _ in self._model.named_buffers() if name.endswith("position_ids")]

    @property
    def num_tokens(self) -> int:
        """Tokens per picture: one for the whole picture, one for each patch."""
        return (self._size // self._patch) ** 2 + 1

    def describe_weights(self, dtype: jnp.dtype, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
        """The weights' shapes and where they rest, without the weights."""
        shapes = {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in self._model.state_dict().items()}
        return layout.describe(shapes, layout.outer_weight)

    def preprocess(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Pixels [N, 3, height, width] as the checkpoint's own preprocessor makes them; without one, zeros of that shape."""
        if self._processor is None:
            return np.zeros((len(images), 3, self._size, self._size), np.float32)
        return self._processor(images=list(images), return_tensors="np")["pixel_values"]

    def embed(self, weights: Mapping[str, jax.Array], pixels: jax.Array) -> jax.Array:
        """Tokens [N, num_tokens, width] of `preprocess`ed pixels. Pure, to be compiled."""
        places = jnp.arange(self.num_tokens)[None]
        return call_module(self._model, {**weights, **dict.fromkeys(self._buffers, places)}, _hidden_state, pixels)


def _hidden_state(model: CLIPVisionModel, pixels: torch.Tensor) -> torch.Tensor:
    return model(pixel_values=pixels, output_hidden_states=True).hidden_states[HIDDEN_STATE]
