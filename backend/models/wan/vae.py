"""The Wan video autoencoder, one latent frame at a time, its causal caches as explicit state.

On TPUs `backend.models.wan.vae_tpu` runs Wan's own autoencoders, in bfloat16.

diffusers' encoder and decoder keep a list of caches that starts as None, turns into tensors of one or two frames, and holds
the word "Rep" where an upsampling layer has seen its first frame only. Each of these means that zeros come before the first
frame, so here a cache is always two frames, zero where there was none. Two programs then serve a video of any length, one for the
first latent frame and one for all others.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify

from backend.models.common.video_autoencoder import StreamedAutoencoder, Weights
from backend.models.wan import vae_tpu
from backend.runtime.mesh import Layout

CACHE_FRAMES = 2


class VideoAutoencoder(StreamedAutoencoder):
    """Its latents are normalised: each channel has zero mean and unit variance; first calls take no caches."""

    _on_tpu = vae_tpu
    _convolution = "decoder.conv_in.weight"

    def __init__(self, config: Mapping[str, Any], layout: Layout) -> None:
        with torch.device("meta"):
            super().__init__(AutoencoderKLWan.from_config(dict(config)), layout)
        whole = self._vae.config  # with the entries that an older file does not have
        self.spatial_scale: int = whole.scale_factor_spatial
        self.temporal_scale: int = whole.scale_factor_temporal
        self.latent_channels: int = whole.z_dim
        self._mean, self._std = whole.latents_mean, whole.latents_std

    def encode_image(self, weights: Weights, image: jax.Array) -> jax.Array:
        """Latents [1, C, 1, H, W] of one picture [1, 3, 1, height, width]: the posterior's mode."""
        return self.encode_first(weights, image)[0]

    def _can_use_strips(self) -> bool:
        return vae_tpu.can_run(self._vae.config)

    def _normalise(self, latents: jax.Array) -> jax.Array:
        mean, std = self._mean_and_std(latents.dtype)
        return (latents - mean) / std

    def _denormalise(self, latents: jax.Array) -> jax.Array:
        mean, std = self._mean_and_std(latents.dtype)
        return latents * std + mean

    def _mean_and_std(self, dtype) -> tuple[jax.Array, jax.Array]:
        mean, std = (jnp.asarray(values, dtype).reshape(1, -1, 1, 1, 1) for values in (self._mean, self._std))
        return mean, std

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


def _to_cache_list(network: torch.nn.Module, caches: dict[int, torch.Tensor] | None = None) -> list[Any]:
    """The list that diffusers' layers read and write: one place per convolution; not all are used."""
    count = sum(isinstance(module, WanCausalConv3d) for module in network.modules())
    return [None if caches is None else caches.get(index) for index in range(count)]


def _to_cache_dictionary(state: list[Any]) -> dict[int, torch.Tensor]:
    """The places in use, each with two frames.

    An upsampling layer that has seen one frame says "Rep": its cache is zero, in the shape of the place before it, which
    holds the same layer's input to the convolution just before.
    """
    caches: dict[int, torch.Tensor] = {}
    for index, cache in enumerate(state):
        if isinstance(cache, str):
            caches[index] = torch.zeros_like(caches[index - 1])
        elif cache is not None:
            missing = CACHE_FRAMES - cache.shape[2]
            caches[index] = torch.nn.functional.pad(cache, (0, 0, 0, 0, missing, 0)) if missing else cache
    return caches
