"""HunyuanVideo-1.5's video autoencoder for TPUs: brings its weights, its latents and its pixels to `kernels.causal_conv`, a strip
of columns on every chip.

Numerics are those of `backend.models.hunyuan.vae` in bfloat16, except that the norms see float32 here. The layers themselves
are in `backend.models.hunyuan.vae_tpu_layers`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLHunyuanVideo15
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import HunyuanVideo15RMS_norm

from backend.models.common.strip_layers import Caches, Chip, Weights
from backend.models.common.strips import Strips, padded_vector
from backend.models.hunyuan.vae_stream import FRAMES_SEEN
from backend.models.hunyuan.vae_tpu_layers import LayerRunner
from backend.runtime.mesh import Layout
from kernels.causal_conv import arrange_weight, swap_rows_and_columns
from kernels.causal_conv_cut import padded_channels, padded_rows


def arrange(vae: AutoencoderKLHunyuanVideo15, weights: Weights) -> dict[str, jax.Array]:
    """The checkpoint's tensors as the products need them: done once per model, not once per frame."""
    arranged = {}
    for name, module in vae.named_modules():
        if isinstance(module, HunyuanVideo15RMS_norm):
            arranged[f"{name}.gamma"] = padded_vector(weights[f"{name}.gamma"])
        elif isinstance(module, torch.nn.Conv3d):
            weight = weights[f"{name}.weight"]
            arranged[f"{name}.weight"] = arrange_weight(weight) if weight.shape[3] == 3 else _matrix(weight[..., 0, 0, 0])
            arranged[f"{name}.bias"] = padded_vector(weights[f"{name}.bias"])
    return arranged


def _matrix(weight: jax.Array) -> jax.Array:
    """[N, C] to [C', N'] with padded channels."""
    return jnp.pad(weight, [(0, padded_channels(size) - size) for size in weight.shape]).T


def describe_keys(layout: Layout, widths: Mapping[str, int], latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, Any]:
    """Room for keys and values of these widths, [F, W, H, C'] each, in the strips of latents [1, C, F, H, W]."""
    _, _, frames, height, width = latent_shape
    strips = Strips.of(layout, height, width, pads=True)
    rows = width if strips.turned else height
    sharding = layout.sharding(strips.spec)
    return {
        name: jax.ShapeDtypeStruct(
            (frames, strips.all_columns, padded_rows(rows), padded_channels(size)), dtype, sharding=sharding
        )
        for name, size in widths.items()
    }


def decode(
    vae: AutoencoderKLHunyuanVideo15,
    weights: Weights,
    latents: jax.Array,
    before: Caches,
    layout: Layout,
    interpret: bool = False,
) -> tuple[jax.Array, Caches]:
    """Pixels [1, 3, 1 or 4, height, width] in [-1, 1] of unscaled latents [1, C, 1, H, W], and the caches after them.

    `weights` as `arrange` leaves them; `before` holds room for the keys and values, and after the first frame all caches.
    """
    height, width = latents.shape[3:]
    plan = _Plan(vae=vae, layout=layout, size=(height, width), interpret=interpret)
    pixels, after = plan.run(LayerRunner.decode, weights, latents, before)
    return pixels.clip(-1.0, 1.0), after


def encode(
    vae: AutoencoderKLHunyuanVideo15, weights: Weights, pixels: jax.Array, before: Caches, layout: Layout, interpret: bool = False
) -> tuple[jax.Array, Caches]:
    """Moments [1, 2 C, 1, H, W] of the posterior of pixels [1, 3, 1 or 4, height, width], and the caches after them."""
    size = tuple(side // vae.config.spatial_compression_ratio for side in pixels.shape[3:])
    plan = _Plan(vae=vae, layout=layout, size=size, interpret=interpret)
    return plan.run(LayerRunner.encode, weights, pixels, before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """How one latent frame of this `size` (height, width of the latents) goes through the network."""

    vae: AutoencoderKLHunyuanVideo15
    layout: Layout
    size: tuple[int, int]
    interpret: bool

    def run(self, way: Callable, weights: Weights, array: jax.Array, before: Caches) -> tuple[jax.Array, Caches]:
        """`way` through the layers on every chip, from and to arrays [1, C, F, height, width]; and the caches after it."""
        strips = Strips.of(self.layout, *self.size, pads=True)
        columns, rows = array.shape[3:] if strips.turned else array.shape[:2:-1]
        own = {name: _turned(value) if strips.turned else value for name, value in weights.items()}
        norms = ((name, module) for name, module in self.vae.named_modules() if isinstance(module, HunyuanVideo15RMS_norm))
        widths = {name: module.gamma.numel() for name, module in norms}
        seen = before[FRAMES_SEEN]
        kept = {name: cache for name, cache in before.items() if name != FRAMES_SEEN}

        def one_chip(own: Weights, frames: jax.Array, kept: Caches, seen: jax.Array) -> tuple[jax.Array, Caches]:
            chip = Chip(axes=strips.axes, is_turned=strips.turned, interpret=self.interpret)
            runner = LayerRunner(chip, own, widths, kept, rows, strips.padding_of(columns), seen)
            result, channels = way(runner, self.vae, frames)
            return strips.pictures(result[:, :, : runner.rows], channels), runner.after

        result, after = strips.run(one_chip, own, strips.cut(array, padded_rows(rows)), kept, seen)
        return result[None], after | {FRAMES_SEEN: seen + 1}


def _turned(weight: jax.Array) -> jax.Array:
    """An arranged convolution with rows and columns swapped; other weights unchanged."""
    return swap_rows_and_columns(weight, frames=3) if weight.ndim == 3 else weight
