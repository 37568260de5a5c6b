"""HunyuanVideo-1.5's video autoencoder, one latent frame at a time, its caches as explicit state.
On TPUs `backend.families.hunyuan.vae_tpu` runs it, in bfloat16.

Two programs serve a video of any length, one for the first latent frame and one for all others. The attention in the middle sees
all earlier frames, so its keys and values are kept in arrays with room for the whole clip: the first call takes zeros as
`describe_keys` says, each later one the caches that the call before it left.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLHunyuanVideo15

from backend.families.hunyuan import vae_tpu
from backend.families.hunyuan.vae_stream import FRAMES_SEEN, KEYS_AND_VALUES, FrameRunner
from backend.runtime.mesh import Layout
from backend.runtime.torch_modules import call_module

Caches = dict[str, jax.Array]


class VideoAutoencoder:
    """Modules of one VAE; weights are passed to every call. All methods are pure, to be compiled.

    Pixels are float32 in [-1, 1] unless a docstring says otherwise; latents are multiplied by the checkpoint's scaling factor.
    """

    def __init__(self, config: Mapping[str, Any], layout: Layout) -> None:
        with torch.device("meta"):
            self._vae = AutoencoderKLHunyuanVideo15.from_config(dict(config)).eval()
        self._layout = layout
        self.spatial_scale: int = self._vae.config.spatial_compression_ratio
        self.temporal_scale: int = self._vae.config.temporal_compression_ratio
        self._scaling_factor: float = self._vae.config.scaling_factor

    @property
    def uses_up_caches(self) -> bool:
        """Whether a call may overwrite the caches that it was given. Not with `vae_tpu`, whose caches are
        earlier results: it would have to copy."""
        return not self._uses_strips(jnp.bfloat16)

    @property
    def latent_channels(self) -> int:
        return self._vae.config.latent_channels

    def arrange(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The weights in the form that encoding and decoding need: the checkpoint's own, or rearranged for `vae_tpu`."""
        dtype = _dtype(weights)
        if not self._uses_strips(dtype):
            return weights
        places = jax.tree.map(lambda leaf: leaf.sharding, self.describe_arranged(dtype))
        return jax.jit(functools.partial(vae_tpu.arrange, self._vae), out_shardings=places)(weights)

    def describe_arranged(self, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and places of what `arrange` returns."""
        described = self.describe_weights(dtype)
        if not self._uses_strips(dtype):
            return described
        shapes = jax.eval_shape(functools.partial(vae_tpu.arrange, self._vae), described)
        return self._layout.describe(shapes, self._layout.everywhere)

    def _uses_strips(self, dtype: jnp.dtype) -> bool:
        return self._layout.platform == "tpu" and dtype == jnp.bfloat16

    def describe_weights(self, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        """The checkpoint's shapes and where they rest, without the weights."""
        shapes = {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in self._vae.state_dict().items()}
        return self._layout.describe(shapes, self._layout.everywhere)

    def describe_keys(self, latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
        """Room for the keys and values of a clip with latents of this shape [1, C, F, H, W], for the "encoder" and the "decoder":
        shapes and places of the zeros that the first call takes."""
        return {way: self._describe_keys(way, latent_shape, dtype) for way in ("encoder", "decoder")}

    def _describe_keys(self, way: str, latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
        block = getattr(self._vae, way).mid_block
        widths = {
            f"{way}.mid_block.attentions.{place}.{kind}": layer.in_channels
            for place, layer in enumerate(block.attentions)
            for kind in KEYS_AND_VALUES
        }
        seen = {FRAMES_SEEN: self._whole(jax.ShapeDtypeStruct((), jnp.int32))}
        if self._uses_strips(dtype):
            return vae_tpu.describe_keys(self._layout, widths, latent_shape, dtype) | seen
        shapes = {name: jax.ShapeDtypeStruct((1, width, *latent_shape[2:]), dtype) for name, width in widths.items()}
        return self._layout.describe_spread(shapes) | seen

    def encode_image(self, weights: Mapping[str, jax.Array], image: jax.Array) -> jax.Array:
        """Scaled latents [1, C, 1, H, W] of one picture [1, 3, 1, height, width]: the posterior's mode."""
        size = (side // self.spatial_scale for side in image.shape[3:])
        described = self.describe_keys((1, self.latent_channels, 1, *size), _dtype(weights))["encoder"]
        room = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in described.items()}
        return self.encode_first(weights, image, room)[0]

    def encode_first(self, weights: Mapping[str, jax.Array], pixels: jax.Array, room: Caches) -> tuple[jax.Array, Caches]:
        """Scaled latents [1, C, 1, H, W] of a clip's first frame [1, 3, 1, height, width], and the caches after it."""
        return self._encode(weights, pixels, room)

    def encode_next(self, weights: Mapping[str, jax.Array], pixels: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        """Scaled latents [1, C, 1, H, W] of the next frames [1, 3, 4, height, width], and the caches after them."""
        return self._encode(weights, pixels, caches)

    def decode_first(self, weights: Mapping[str, jax.Array], latents: jax.Array, room: Caches) -> tuple[jax.Array, Caches]:
        """The first pixel frame [1, 3, 1, height, width] of latents [1, C, 1, H, W], and the caches after it."""
        return self._decode(weights, latents, room)

    def decode_next(self, weights: Mapping[str, jax.Array], latents: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        """The next pixel frames [1, 3, 4, height, width] of latents [1, C, 1, H, W], and the caches after them."""
        return self._decode(weights, latents, caches)

    def place_encoded(self, shapes: tuple[Any, Caches]) -> tuple[Any, Caches]:
        """Where the results of `encode_first` and `encode_next` lie: latents on all devices, caches spread over space."""
        latents, caches = shapes
        return self._whole(latents), self._place_caches(latents.shape[3:], caches)

    def place_decoded(self, shapes: tuple[Any, Caches]) -> tuple[Any, Caches]:
        """Where the results of `decode_first` and `decode_next` lie: pixels and caches spread over space."""
        pixels, caches = shapes
        size = tuple(side // self.spatial_scale for side in pixels.shape[3:])
        return self._layout.describe_spread({"pixels": pixels})["pixels"], self._place_caches(size, caches)

    def _place_caches(self, size: Sequence[int], caches: Caches) -> Caches:
        """Pictures spread over space, the count on all devices; `size` is the latents' height and width."""
        if any(leaf.ndim == 4 for leaf in caches.values()):
            return vae_tpu.place_caches(self._layout, size, caches)
        pictures = {name: leaf for name, leaf in caches.items() if leaf.ndim}
        counts = {name: self._whole(leaf) for name, leaf in caches.items() if not leaf.ndim}
        return self._layout.describe_spread(pictures) | counts

    def _whole(self, leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._layout.replicated)

    def _encode(self, weights: Mapping[str, jax.Array], pixels: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        pixels = pixels.astype(_dtype(weights))
        if vae_tpu.is_arranged(weights):
            moments, caches = vae_tpu.encode(self._vae, weights, pixels, caches, self._layout)
        else:
            moments, caches = call_module(self._vae, weights, _encode_frames, self._spread(pixels), caches)
            caches = self._spread_caches(caches)
        return moments[:, : self.latent_channels] * self._scaling_factor, caches

    def _decode(self, weights: Mapping[str, jax.Array], latents: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        latents = (self._spread(latents) / self._scaling_factor).astype(_dtype(weights))
        if vae_tpu.is_arranged(weights):
            return vae_tpu.decode(self._vae, weights, latents, caches, self._layout)
        pixels, caches = call_module(self._vae, weights, _decode_frame, latents, caches)
        return pixels, self._spread_caches(caches)

    def _spread_caches(self, caches: Caches) -> Caches:
        return {name: self._spread(cache) if cache.ndim else cache for name, cache in caches.items()}

    def _spread(self, array: jax.Array) -> jax.Array:
        """The array with its space spread over the chips; the convolutions exchange the borders."""
        return self._layout.constrain(array, self._layout.space(*array.shape[3:]))


def _dtype(weights: Mapping[str, jax.Array]) -> jnp.dtype:
    return weights["decoder.conv_in.conv.weight"].dtype


def _encode_frames(vae: AutoencoderKLHunyuanVideo15, pixels: torch.Tensor, before: Mapping[str, torch.Tensor]):
    """Moments [1, 2 C, 1, H, W] of one latent frame's posterior, and the caches after it."""
    runner = FrameRunner(before)
    return runner.encode(vae, pixels), runner.after


def _decode_frame(vae: AutoencoderKLHunyuanVideo15, latents: torch.Tensor, before: Mapping[str, torch.Tensor]):
    """One latent frame's pixels in [-1, 1], and the caches after it."""
    runner = FrameRunner(before)
    return runner.decode(vae, latents).clamp(-1.0, 1.0), runner.after
