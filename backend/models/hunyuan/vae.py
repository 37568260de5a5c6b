"""HunyuanVideo-1.5's video autoencoder, one latent frame at a time, its caches as explicit state.
On TPUs `backend.models.hunyuan.vae_tpu` runs it, in bfloat16.

Two programs serve a video of any length, one for the first latent frame and one for all others. The attention in the middle sees
all earlier frames, so its keys and values are kept in arrays with room for the whole clip: the first call takes zeros as
`describe_keys` says, each later one the caches that the call before it left.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLHunyuanVideo15

from backend.models.common.video_autoencoder import StreamedAutoencoder, Weights
from backend.models.hunyuan import vae_tpu
from backend.models.hunyuan.vae_stream import FRAMES_SEEN, KEYS_AND_VALUES, FrameRunner
from backend.runtime.mesh import Layout


class VideoAutoencoder(StreamedAutoencoder):
    """Its latents are multiplied by the checkpoint's scaling factor; first calls take room for keys and values."""

    _on_tpu = vae_tpu
    _convolution = "decoder.conv_in.conv.weight"
    _pads_strips = True

    def __init__(self, config: Mapping[str, Any], layout: Layout) -> None:
        with torch.device("meta"):
            super().__init__(AutoencoderKLHunyuanVideo15.from_config(dict(config)), layout)
        self.spatial_scale: int = self._vae.config.spatial_compression_ratio
        self.temporal_scale: int = self._vae.config.temporal_compression_ratio
        self.latent_channels: int = self._vae.config.latent_channels
        self._scaling_factor: float = self._vae.config.scaling_factor

    def describe_keys(self, latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, dict[str, jax.Array]]:
        """Room for the keys and values of a clip with latents of this shape [1, C, F, H, W], for the "encoder" and the "decoder":
        shapes and places of the zeros that the first call takes."""
        return {way: self._describe_keys(way, latent_shape, dtype) for way in ("encoder", "decoder")}

    def _describe_keys(self, way: str, latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, jax.Array]:
        block = getattr(self._vae, way).mid_block
        widths = {
            f"{way}.mid_block.attentions.{place}.{kind}": layer.in_channels
            for place, layer in enumerate(block.attentions)
            for kind in KEYS_AND_VALUES
        }
        seen = {FRAMES_SEEN: self._layout.replicate_shapes(jax.ShapeDtypeStruct((), jnp.int32))}
        if self._uses_strips(dtype):
            return vae_tpu.describe_keys(self._layout, widths, latent_shape, dtype) | seen
        shapes = {name: jax.ShapeDtypeStruct((1, width, *latent_shape[2:]), dtype) for name, width in widths.items()}
        return self._layout.describe_spread(shapes) | seen

    def encode_image(self, weights: Weights, image: jax.Array) -> jax.Array:
        """Latents [1, C, 1, H, W] of one picture [1, 3, 1, height, width]: the posterior's mode."""
        size = (side // self.spatial_scale for side in image.shape[3:])
        described = self.describe_keys((1, self.latent_channels, 1, *size), self._dtype(weights))["encoder"]
        room = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in described.items()}
        return self.encode_first(weights, image, room)[0]

    def _normalise(self, latents: jax.Array) -> jax.Array:
        return latents * self._scaling_factor

    def _denormalise(self, latents: jax.Array) -> jax.Array:
        return latents / self._scaling_factor

    @staticmethod
    def _encode_frames(vae: AutoencoderKLHunyuanVideo15, pixels: torch.Tensor, before: Mapping[str, torch.Tensor]):
        runner = FrameRunner(before)
        return runner.encode(vae, pixels), runner.after

    @staticmethod
    def _decode_frame(vae: AutoencoderKLHunyuanVideo15, latents: torch.Tensor, before: Mapping[str, torch.Tensor]):
        runner = FrameRunner(before)
        return runner.decode(vae, latents).clamp(-1.0, 1.0), runner.after
