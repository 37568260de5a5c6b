"""The Wan video autoencoder. Each call processes one latent frame, takes the caches of earlier frames, and returns new caches.

On TPUs `backend.models.wan.vae_tpu` runs the published autoencoders in bfloat16.

In diffusers, a cache has no, one or two frames, or is "Rep" in an upsampling layer that has seen only its first frame. The
layers treat missing frames as zeros. In this module, a cache always has two frames. Therefore two programs are enough for a video
of any length: one for the first latent frame, and one for all others.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify

from backend.checkpoints.json_files import Config
from backend.models.common.video_autoencoder import StreamedAutoencoder, Weights
from backend.models.wan import vae_tpu
from backend.runtime.mesh import Layout

CACHE_FRAMES = 2


class VideoAutoencoder(StreamedAutoencoder):
    """Wan's video autoencoder. The call for the first latent frame takes no caches."""

    _on_tpu = vae_tpu
    _convolution = "decoder.conv_in.weight"

    def __init__(self, config: Config, layout: Layout) -> None:
        with torch.device("meta"):
            vae = AutoencoderKLWan.from_config(dict(config))
        self._can_use_strips = vae_tpu.can_run(vae.config)
        super().__init__(vae, layout)
        full_config = self._vae.config  # unlike `config`, it has defaults for entries that older files lack
        self.spatial_scale: int = full_config.scale_factor_spatial
        self.temporal_scale: int = full_config.scale_factor_temporal
        self.latent_channels: int = full_config.z_dim
        self._mean, self._std = full_config.latents_mean, full_config.latents_std

    def encode_image(self, weights: Weights, image: jax.Array) -> jax.Array:
        """Encode one image [1, 3, 1, height, width] to the posterior's mode, latents [1, C, 1, H, W]."""
        return self.encode_first(weights, image)[0]

    def _normalise(self, latents: jax.Array) -> jax.Array:
        mean, std = (jnp.asarray(values, latents.dtype).reshape(1, -1, 1, 1, 1) for values in (self._mean, self._std))
        return (latents - mean) / std

    def _denormalise(self, latents: jax.Array) -> jax.Array:
        mean, std = (jnp.asarray(values, latents.dtype).reshape(1, -1, 1, 1, 1) for values in (self._mean, self._std))
        return latents * std + mean

    @staticmethod
    def _encode_frames(vae: AutoencoderKLWan, pixels: torch.Tensor, caches: dict[int, torch.Tensor] | None) -> Any:
        if vae.config.patch_size is not None:
            pixels = patchify(pixels, patch_size=vae.config.patch_size)
        state = _to_cache_list(vae.encoder, caches)
        moments = vae.quant_conv(vae.encoder(pixels, feat_cache=state, feat_idx=[0]))
        return moments, _to_cache_dictionary(state)

    @staticmethod
    def _decode_frame(vae: AutoencoderKLWan, latents: torch.Tensor, caches: dict[int, torch.Tensor] | None) -> Any:
        state = _to_cache_list(vae.decoder, caches)
        first = {"first_chunk": True} if caches is None else {}
        pixels = vae.decoder(vae.post_quant_conv(latents), feat_cache=state, feat_idx=[0], **first)
        if vae.config.patch_size is not None:
            pixels = unpatchify(pixels, patch_size=vae.config.patch_size)
        return pixels.clamp(-1.0, 1.0), _to_cache_dictionary(state)


def _to_cache_list(network: torch.nn.Module, caches: dict[int, torch.Tensor] | None = None) -> list[object]:
    """Return the list of caches that diffusers' layers read and write, with at least as many entries as they use."""
    count = sum(isinstance(module, WanCausalConv3d) for module in network.modules())
    return [None if caches is None else caches.get(index) for index in range(count)]


def _to_cache_dictionary(state: list[Any]) -> dict[int, torch.Tensor]:
    """Return the used entries of diffusers' list of caches by index, each with two frames.

    The entry "Rep" becomes zeros in the shape of the previous entry, whose convolution has an input of the same shape.
    """
    caches: dict[int, torch.Tensor] = {}
    for index, cache in enumerate(state):
        if isinstance(cache, str):
            caches[index] = torch.zeros_like(caches[index - 1])
        elif cache is not None:
            missing = CACHE_FRAMES - cache.shape[2]
            caches[index] = torch.nn.functional.pad(cache, (0, 0, 0, 0, missing, 0)) if missing else cache
    return caches
