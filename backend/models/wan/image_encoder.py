"""The CLIP vision encoder of Wan 2.1's image-to-video models. It encodes images to tokens for the cross-attention."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModel
from transformers.image_processing_utils import BaseImageProcessor
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from backend.checkpoints.json_files import Config
from backend.models.common.modules import Encoder, network_settings
from backend.runtime.torch_modules import call_module

HIDDEN_STATE = -2  # index of the layer whose output Wan reads: the second-to-last layer


class ImageEncoder(Encoder):
    """A preprocessor, and CLIP's vision encoder without its weights, which `embed` takes as an argument."""

    def __init__(self, config: Config, processor: BaseImageProcessor | None = None) -> None:
        settings = CLIPVisionConfig(**network_settings(config))
        with torch.device("meta"):
            self._model = CLIPVisionModel(settings).eval()
        self._processor = processor
        self._size = settings.image_size
        self.num_tokens = (settings.image_size // settings.patch_size) ** 2 + 1  # per image; one is for the whole image
        self._buffers = [name for name, _ in self._model.named_buffers() if name.endswith("position_ids")]

    def preprocess(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Preprocess images to pixels [N, 3, size, size]. Return zeros if the model is only described, without a checkpoint."""
        if self._processor is None:
            return np.zeros((len(images), 3, self._size, self._size), np.float32)
        return self._processor(images=list(images), return_tensors="np")["pixel_values"]

    def embed(self, weights: Mapping[str, jax.Array], pixels: jax.Array) -> jax.Array:
        """Encode pixels from `preprocess` to tokens [N, num_tokens, width]. This method is pure."""
        places = jnp.arange(self.num_tokens)[None]

        def hidden_state(model: CLIPVisionModel, pixels: torch.Tensor) -> torch.Tensor:
            return model(pixel_values=pixels, output_hidden_states=True).hidden_states[HIDDEN_STATE]

        return call_module(self._model, {**weights, **dict.fromkeys(self._buffers, places)}, hidden_state, pixels)


class WholeImageEncoder(ImageEncoder):
    """CLIP's encoder for the whole image, which is resized to a square without cropping. There is no preprocessor.

    Sources: SkyworkAI/Matrix-Game, Matrix-Game-2/wan/vae/wanx_vae_src/clip.py, and diffusers,
    modular_pipelines/wan_animate_2/encoders.py.
    """

    def preprocess(self, images: Sequence[Image.Image | np.ndarray]) -> np.ndarray:
        """Resize images to [N, 3, size, size] float32, and normalise them with CLIP's mean and standard deviation."""
        pixels = np.stack([np.asarray(image, np.float32).transpose(2, 0, 1) / 255 for image in images])
        square = (self._size, self._size)
        resized = torch.nn.functional.interpolate(torch.from_numpy(pixels), size=square, mode="bicubic", align_corners=False)
        mean, deviation = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
        return (resized.numpy() - mean) / deviation
