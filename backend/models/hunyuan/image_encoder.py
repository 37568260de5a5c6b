"""The SigLIP vision encoder of HunyuanVideo 1.5's image-to-video models. It turns an image into context tokens."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from PIL import Image
from transformers import SiglipVisionConfig, SiglipVisionModel
from transformers.image_processing_utils import BaseImageProcessor

from backend.checkpoints.json_files import Config
from backend.models.common.modules import Encoder, network_settings
from backend.models.hunyuan.transformer import norm_in_float32
from backend.runtime.torch_modules import call_module


class ImageEncoder(Encoder):
    """The checkpoint's image preprocessor and the modules of the encoder. Methods take the weights as an argument."""

    def __init__(self, config: Config, processor: BaseImageProcessor | None) -> None:
        settings = SiglipVisionConfig(**network_settings(config) | {"vision_use_head": False})  # the pooled output is not used
        with torch.device("meta"):
            self._model = SiglipVisionModel(settings).eval()
        self._model.embeddings.patch_embedding.padding = (0, 0)  # the same as "valid", which torchax does not support
        norm_in_float32(self._model)
        self._processor, self._size = processor, settings.image_size
        self.num_tokens = (settings.image_size // settings.patch_size) ** 2

    def preprocess(self, image: Image.Image) -> np.ndarray:
        """Convert an image to pixels [1, 3, height, width] with the checkpoint's preprocessor."""
        if self._processor is None:
            return np.zeros((1, 3, self._size, self._size), np.float32)
        return self._processor(images=image, do_resize=True, do_convert_rgb=True, return_tensors="np")["pixel_values"]

    def embed(self, weights: Mapping[str, jax.Array], pixels: jax.Array) -> jax.Array:
        buffers = {name: jnp.arange(self.num_tokens)[None] for name, _ in self._model.named_buffers()}
        return call_module(
            self._model, {**weights, **buffers}, lambda model, pixels: model(pixel_values=pixels).last_hidden_state, pixels
        )
