"""The Wan video autoencoder, one latent frame at a time, its causal caches as explicit state.

On TPUs `backend.families.wan.vae_tpu` runs Wan's own autoencoders, in bfloat16.

diffusers' encoder and decoder keep a list of caches that starts as None, turns into tensors of one or two frames, and holds
the word "Rep" where an upsampling layer has seen its first frame only. Each of these means that zeros come before the first
frame, so here a cache is always two frames, zero where there was none. Two programs then serve a video of any length, one for the
first latent frame and one for all others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify

from backend.families.wan import vae_tpu
from backend.runtime.mesh import Layout
from backend.runtime.torch_modules import call_module

CACHE_FRAMES = 2
Caches = dict[int, jax.Array]


class VideoAutoencoder:
    """Modules and latent statistics of one VAE; weights are passed to every call. All methods are pure, to be compiled.

    Pixels are float32 in [-1, 1] unless a docstring says otherwise; latents are normalised, with zero mean and unit variance.
    """

    def __init__(self, config: Mapping[str, Any], layout: Layout) -> None:
        with torch.device("meta"):
            self._vae = AutoencoderKLWan.from_config(dict(config)).eval()
        self._layout = layout
        whole = self._vae.config  # with the entries that an older file does not have
        self.spatial_scale: int = whole.scale_factor_spatial
        self.temporal_scale: int = whole.scale_factor_temporal
        self._mean, self._std = whole.latents_mean, whole.latents_std

    @property
    def uses_up_caches(self) -> bool:
        """Whether a call may overwrite the caches that it was given. Not with `vae_tpu`, whose caches are
        earlier results: it would have to copy."""
        return not self._uses_strips(jnp.bfloat16)

    @property
    def latent_channels(self) -> int:
        return self._vae.config.z_dim

    def arrange(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The weights in the form that encoding and decoding need: the checkpoint's own, or rearranged for `vae_tpu`."""
        if not self._uses_strips(weights["decoder.conv_in.weight"].dtype):
            return weights
        places = jax.tree.map(lambda leaf: leaf.sharding, self.describe_arranged(weights["decoder.conv_in.weight"].dtype))
        return jax.jit(functools.partial(vae_tpu.arrange, self._vae), out_shardings=places)(weights)

    def describe_arranged(self, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and places of what `arrange` returns."""
        described = self.describe_weights(dtype)
        if not self._uses_strips(dtype):
            return described
        shapes = jax.eval_shape(functools.partial(vae_tpu.arrange, self._vae), described)
        return self._layout.describe(shapes, self._layout.everywhere)

    def _uses_strips(self, dtype: jnp.dtype) -> bool:
        return self._layout.platform == "tpu" and dtype == jnp.bfloat16 and vae_tpu.can_run(self._vae.config)

    def describe_weights(self, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        """The checkpoint's shapes and where they rest, without the weights."""
        shapes = {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in self._vae.state_dict().items()}
        return self._layout.describe(shapes, self._layout.everywhere)

    def encode_image(self, weights: Mapping[str, jax.Array], image: jax.Array) -> jax.Array:
        """Normalised latents [1, C, 1, H, W] of one picture [1, 3, 1, height, width]: the posterior's mode."""
        return self.encode_first(weights, image)[0]

    def encode_first(self, weights: Mapping[str, jax.Array], pixels: jax.Array) -> tuple[jax.Array, Caches]:
        """Normalised latents [1, C, 1, H, W] of a clip's first frame [1, 3, 1, height, width], and the caches after it."""
        return self._encode(weights, pixels, None)

    def encode_next(self, weights: Mapping[str, jax.Array], pixels: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        """Normalised latents [1, C, 1, H, W] of the next frames [1, 3, 4, height, width], and the caches after them."""
        return self._encode(weights, pixels, caches)

    def _encode(self, weights: Mapping[str, jax.Array], pixels: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
        if vae_tpu.is_arranged(weights):
            moments, caches = vae_tpu.encode(self._vae, weights, pixels, caches, self._layout)
        else:
            moments, caches = call_module(self._vae, weights, _encode_frames, self._spread(pixels), caches)
            caches = {place: self._spread(cache) for place, cache in caches.items()}
        mean, std = self._statistics(moments.dtype)
        return (moments[:, : self.latent_channels] - mean) / std, caches

    def decode_first(self, weights: Mapping[str, jax.Array], latents: jax.Array) -> tuple[jax.Array, Caches]:
        """The first pixel frame [1, 3, 1, height, width] of latents [1, C, 1, H, W], and the caches after it."""
        return self._decode(weights, latents, None)

    def decode_next(self, weights: Mapping[str, jax.Array], latents: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        """The next pixel frames [1, 3, 4, height, width] of latents [1, C, 1, H, W], and the caches after them."""
        return self._decode(weights, latents, caches)

    def place_encoded(self, shapes: tuple[Any, Caches]) -> tuple[Any, Caches]:
        """Where the results of `encode_first` and `encode_next` lie: latents on all devices, caches spread over space."""
        latents, caches = shapes
        whole = jax.ShapeDtypeStruct(latents.shape, latents.dtype, sharding=self._layout.replicated)
        return whole, self._place_caches(latents.shape[3:], caches)

    def place_decoded(self, shapes: tuple[Any, Caches]) -> tuple[Any, Caches]:
        """Where the results of `decode_first` and `decode_next` lie: pixels and caches spread over space."""
        pixels, caches = shapes
        size = tuple(side // self.spatial_scale for side in pixels.shape[3:])
        return self._layout.describe_spread({"pixels": pixels})["pixels"], self._place_caches(size, caches)

    def _place_caches(self, size: Sequence[int], caches: Caches) -> Caches:
        """Spread over space; `size` is the latents' height and width."""
        if next(iter(caches.values())).ndim == 4:
            return vae_tpu.place_caches(self._layout, size, caches)
        return self._layout.describe_spread(caches)

    def _decode(self, weights: Mapping[str, jax.Array], latents: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
        dtype = weights["post_quant_conv.weight"].dtype
        latents = self._denormalise(self._spread(latents)).astype(dtype)
        if vae_tpu.is_arranged(weights):
            return vae_tpu.decode(self._vae, weights, latents, caches, self._layout)
        pixels, caches = call_module(self._vae, weights, _decode_frame, latents, caches)
        return pixels, {place: self._spread(cache) for place, cache in caches.items()}

    def _spread(self, array: jax.Array) -> jax.Array:
        """The array with its space spread over the chips; the convolutions exchange the borders."""
        return self._layout.constrain(array, self._layout.space(*array.shape[3:]))

    def _denormalise(self, latents: jax.Array) -> jax.Array:
        mean, std = self._statistics(latents.dtype)
        return latents * std + mean

    def _statistics(self, dtype) -> tuple[jax.Array, jax.Array]:
        mean, std = (jnp.asarray(values, dtype).reshape(1, -1, 1, 1, 1) for values in (self._mean, self._std))
        return mean, std


def _encode_frames(vae: AutoencoderKLWan, pixels: torch.Tensor, caches: dict[int, torch.Tensor] | None):
    """Moments [1, 2 C, 1, H, W] of one latent frame's posterior, and the caches after it."""
    if vae.config.patch_size is not None:
        pixels = patchify(pixels, patch_size=vae.config.patch_size)
    state = _cache_list(vae.encoder, caches)
    moments = vae.quant_conv(vae.encoder(pixels, feat_cache=state, feat_idx=[0]))
    return moments, _cache_dictionary(state)


def _decode_frame(vae: AutoencoderKLWan, latents: torch.Tensor, caches: dict[int, torch.Tensor] | None):
    """One latent frame's pixels in [-1, 1], and the caches after it."""
    state = _cache_list(vae.decoder, caches)
    first = {"first_chunk": True} if caches is None else {}
    pixels = vae.decoder(vae.post_quant_conv(latents), feat_cache=state, feat_idx=[0], **first)
    if vae.config.patch_size is not None:
        pixels = unpatchify(pixels, patch_size=vae.config.patch_size)
    return pixels.clamp(-1.0, 1.0), _cache_dictionary(state)


def _cache_list(network: torch.nn.Module, caches: dict[int, torch.Tensor] | None = None) -> list[Any]:
    """The list that diffusers' layers read and write: one place per convolution; not all are used."""
    count = sum(isinstance(module, WanCausalConv3d) for module in network.modules())
    return [None if caches is None else caches.get(index) for index in range(count)]


def _cache_dictionary(state: list[Any]) -> dict[int, torch.Tensor]:
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
