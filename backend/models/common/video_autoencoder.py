"""The shared code of the families' video autoencoders. They process one latent frame at a time, with caches as explicit state."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import torch

from backend.models.common.arithmetic import count_flops
from backend.models.common.modules import parameter_shapes
from backend.models.common.strips import Strips
from backend.runtime.mesh import Layout, replicated_spec, with_sharding
from backend.runtime.torch_modules import call_module
from backend.schemas.geometry import Geometry

Caches = dict[Any, jax.Array]
"""Cached frames by the layer's number or name: [F, W, H, C] on TPUs, elsewhere [1, C, F, H, W]. Counters are scalars."""
Weights = Mapping[str, jax.Array]


class StreamedAutoencoder:
    """Modules of one VAE. Methods take the weights as an argument. They are pure, so that jax can compile them.

    Pixels are float32 in [-1, 1]. Latents are normalised, as the transformer sees them. `before` are the caches that the previous
    call returned. For the first latent frame, callers pass None. In families whose caches cover the whole clip, callers pass
    zeros instead.
    """

    spatial_scale: int
    temporal_scale: int
    latent_channels: int
    _on_tpu: ClassVar[ModuleType]  # the family's module `vae_tpu`, which has the functions arrange, encode and decode
    # The name of a convolution's weight. It has five axes in the checkpoint, and three after `arrange` rearranged it for strips.
    _convolution: ClassVar[str]
    # True if `vae_tpu` supports padding columns, which make the number of columns a multiple of the number of chips.
    _pads_strips: ClassVar[bool] = False
    _can_use_strips: bool = True  # whether `vae_tpu` can run a VAE of this configuration
    _normalise: Callable[[jax.Array], jax.Array]  # encoder's latents -> latents that the transformer sees
    _denormalise: Callable[[jax.Array], jax.Array]  # latents that the transformer sees -> decoder's latents
    # Static methods for one latent frame, of PyTorch's module, pixels or latents, and caches. They return the new caches too.
    _encode_frames: Callable[[Any, torch.Tensor, Any], tuple[torch.Tensor, dict]]  # -> moments [1, 2 C, 1, H, W]
    _decode_frame: Callable[[Any, torch.Tensor, Any], tuple[torch.Tensor, dict]]  # -> pixels in [-1, 1]

    def __init__(self, vae: torch.nn.Module, layout: Layout) -> None:
        self._vae, self._layout = vae.eval(), layout
        # True if a call may overwrite the caches in its arguments. Layers for strips on TPUs return new arrays, and writing such
        # an array over the old cache needs a copy.
        self.uses_up_caches = not self._uses_strips(jnp.bfloat16)

    def arrange(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        dtype = self._dtype(weights)
        if not self._uses_strips(dtype):
            return weights
        places = jax.tree.map(lambda leaf: leaf.sharding, self.describe_arranged(dtype))
        return jax.jit(functools.partial(self._on_tpu.arrange, self._vae), out_shardings=places)(weights)

    def describe_arranged(self, dtype: jnp.dtype) -> dict[str, jax.Array]:
        described = self.describe_weights(dtype)
        if not self._uses_strips(dtype):
            return described
        shapes = jax.eval_shape(functools.partial(self._on_tpu.arrange, self._vae), described)
        return self._layout.describe_weights(shapes, replicated_spec)

    def describe_weights(self, dtype: jnp.dtype) -> dict[str, jax.Array]:
        return self._layout.describe_weights(parameter_shapes(self._vae, dtype), replicated_spec)

    def encode_first(self, weights: Weights, pixels: jax.Array, before: Caches | None = None) -> tuple[jax.Array, Caches]:
        """Encode a clip's first frame [1, 3, 1, height, width] to latents [1, C, 1, H, W]. Also return the new caches."""
        return self._encode(weights, pixels, before)

    def encode_next(self, weights: Weights, pixels: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        """Encode the next frames [1, 3, 4, height, width] to latents [1, C, 1, H, W]. Also return the new caches."""
        return self._encode(weights, pixels, caches)

    def decode_first(self, weights: Weights, latents: jax.Array, before: Caches | None = None) -> tuple[jax.Array, Caches]:
        """Decode the first latent frame [1, C, 1, H, W] to a frame [1, 3, 1, height, width]. Also return the new caches."""
        return self._decode(weights, latents, before)

    def decode_next(self, weights: Weights, latents: jax.Array, caches: Caches) -> tuple[jax.Array, Caches]:
        """Decode the next latent frame [1, C, 1, H, W] to frames [1, 3, 4, height, width]. Also return the new caches."""
        return self._decode(weights, latents, caches)

    def encode_flops(self, geometry: Geometry, num_frames: int) -> float:
        """Extrapolate the operations of encoding `num_frames` latent frames from clips of one and of two latent frames.

        Attention to more than one earlier frame is ignored. It is about 0.1 % of a frame's operations.
        """
        first, second = (self._short_clip_flops(geometry, count, is_decoder=False) for count in (1, 2))
        return first + (num_frames - 1) * (second - first)

    def decode_flops(self, geometry: Geometry) -> float:
        """Extrapolate the operations of decoding a whole video, like `encode_flops`."""
        first, second = (self._short_clip_flops(geometry, count, is_decoder=True) for count in (1, 2))
        return first + (geometry.num_latent_frames - 1) * (second - first)

    @functools.lru_cache(maxsize=32)  # noqa: B019  an autoencoder lives as long as its worker's model
    def _short_clip_flops(self, geometry: Geometry, count: int, is_decoder: bool) -> float:
        _, channels, _, height, width = geometry.latent_shape(self.latent_channels)
        if is_decoder:
            return count_flops(lambda: self._vae.decode(torch.empty(1, channels, count, height, width)))
        frames = 1 + (count - 1) * geometry.temporal_scale
        return count_flops(lambda: self._vae.encode(torch.empty(1, 3, frames, geometry.height, geometry.width)))

    def encoded_sharding(self, shapes: tuple[Any, Caches]) -> tuple[object, Caches]:
        """Return the shardings of the encoder's results: latents are replicated, caches are divided by height or width."""
        latents, caches = shapes
        return with_sharding(latents, self._layout.replicated), self._place_caches(latents.shape[3:], caches)

    def decoded_sharding(self, shapes: tuple[Any, Caches]) -> tuple[Any, Caches]:
        """Return the shardings of the decoder's results: pixels and caches are divided by height or width."""
        pixels, caches = shapes
        size = tuple(side // self.spatial_scale for side in pixels.shape[3:])
        return self._layout.describe_spread({"pixels": pixels})["pixels"], self._place_caches(size, caches)

    def _place_caches(self, size: Sequence[int], caches: Caches) -> Caches:
        """Return the shardings of caches: frames are divided, scalars replicated. `size` is the latents' height and width."""
        pictures = {name: leaf for name, leaf in caches.items() if leaf.ndim}
        counts = {name: with_sharding(leaf, self._layout.replicated) for name, leaf in caches.items() if not leaf.ndim}
        if any(leaf.ndim == 4 for leaf in pictures.values()):
            strips = Strips.choose(self._layout, *size, pads=self._pads_strips)
            return with_sharding(pictures, self._layout.sharding(strips.spec)) | counts
        return self._layout.describe_spread(pictures) | counts

    def _encode(self, weights: Weights, pixels: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
        pixels = pixels.astype(self._dtype(weights))
        if weights[self._convolution].ndim == 3:
            moments, caches = self._on_tpu.encode(self._vae, weights, pixels, caches, self._layout)
        else:
            moments, caches = call_module(self._vae, weights, self._encode_frames, self._divide_space(pixels), caches)
            caches = {name: self._divide_space(cache) if cache.ndim else cache for name, cache in caches.items()}
        return self._normalise(moments[:, : self.latent_channels]), caches

    @jax.named_scope("decoder")
    def _decode(self, weights: Weights, latents: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
        latents = self._denormalise(self._divide_space(latents)).astype(self._dtype(weights))
        if weights[self._convolution].ndim == 3:
            return self._on_tpu.decode(self._vae, weights, latents, caches, self._layout)
        pixels, caches = call_module(self._vae, weights, self._decode_frame, latents, caches)
        return pixels, {name: self._divide_space(cache) if cache.ndim else cache for name, cache in caches.items()}

    def _divide_space(self, array: jax.Array) -> jax.Array:
        """Divide the array over the chips by its height or width. XLA exchanges the borders that convolutions need."""
        return self._layout.constrain(array, self._layout.spatial_partition(*array.shape[3:]))

    def _uses_strips(self, dtype: jnp.dtype) -> bool:
        is_refused = "convolution" in self._layout.runtime.fallbacks
        is_fit = self._layout.platform == "tpu" and dtype == jnp.bfloat16 and not is_refused
        return is_fit and self._can_use_strips

    def _dtype(self, weights: Weights) -> jnp.dtype:
        return weights[self._convolution].dtype
