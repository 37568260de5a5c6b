"""HunyuanVideo-1.5's video autoencoder. It processes one latent frame at a time, with caches as explicit state. On TPUs in
bfloat16, `backend.models.hunyuan.vae_tpu` computes the layers. The attention in the middle block sees all earlier frames, so its
keys and values are cached in arrays for the whole clip."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLHunyuanVideo15

from backend.checkpoints.json_files import Config
from backend.models.common.video_autoencoder import StreamedAutoencoder, Weights
from backend.models.hunyuan import vae_tpu
from backend.models.hunyuan.vae_stream import FRAMES_SEEN, KEYS_AND_VALUES, FrameRunner
from backend.runtime.mesh import Layout, with_sharding


class VideoAutoencoder(StreamedAutoencoder):
    """See `StreamedAutoencoder`. Normalised latents are the encoder's latents times the checkpoint's scaling factor."""

    _on_tpu = vae_tpu
    _convolution = "decoder.conv_in.conv.weight"
    _pads_strips = True

    def __init__(self, config: Config, layout: Layout) -> None:
        with torch.device("meta"):
            super().__init__(AutoencoderKLHunyuanVideo15.from_config(dict(config)), layout)
        self.spatial_scale: int = self._vae.config.spatial_compression_ratio
        self.temporal_scale: int = self._vae.config.temporal_compression_ratio
        self.latent_channels: int = self._vae.config.latent_channels
        self._scaling_factor: float = self._vae.config.scaling_factor

    def describe_keys(self, latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, dict[str, jax.Array]]:
        """Return the shapes and shardings of the cached keys and values of the "encoder" and the "decoder"."""
        described = {}
        for way in ("encoder", "decoder"):
            widths = {
                f"{way}.mid_block.attentions.{place}.{kind}": layer.in_channels
                for place, layer in enumerate(getattr(self._vae, way).mid_block.attentions)
                for kind in KEYS_AND_VALUES
            }
            if self._uses_strips(dtype):
                kept = vae_tpu.describe_keys(self._layout, widths, latent_shape, dtype)
            else:
                shapes = {name: jax.ShapeDtypeStruct((1, width, *latent_shape[2:]), dtype) for name, width in widths.items()}
                kept = self._layout.describe_spread(shapes)
            seen = with_sharding(jax.ShapeDtypeStruct((), jnp.int32), self._layout.replicated)
            described[way] = kept | {FRAMES_SEEN: seen}
        return described

    def encode_image(self, weights: Weights, image: jax.Array) -> jax.Array:
        """Encode an image [1, 3, 1, height, width] to latents [1, C, 1, H, W], the mode of the posterior."""
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
