"""HunyuanVideo-1.5's video autoencoder for TPUs, built on `kernels.causal_conv` with a strip of columns on every chip. The
results are equal to `backend.models.hunyuan.vae` in bfloat16, except that norms read float32 here."""

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
from kernels.causal_conv_tiling import padded_channels, padded_rows


def arrange(vae: AutoencoderKLHunyuanVideo15, weights: Weights) -> dict[str, jax.Array]:
    arranged = {}
    for name, module in vae.named_modules():
        if isinstance(module, HunyuanVideo15RMS_norm):
            arranged[f"{name}.gamma"] = padded_vector(weights[f"{name}.gamma"])
        elif isinstance(module, torch.nn.Conv3d):
            weight = weights[f"{name}.weight"]
            if weight.shape[3] == 3:
                arranged[f"{name}.weight"] = arrange_weight(weight)
            else:  # transpose [N, C], and pad both to numbers of channels that the kernel supports
                matrix = weight[..., 0, 0, 0]
                arranged[f"{name}.weight"] = jnp.pad(matrix, [(0, padded_channels(size) - size) for size in matrix.shape]).T
            arranged[f"{name}.bias"] = padded_vector(weights[f"{name}.bias"])
    return arranged


def describe_keys(layout: Layout, widths: Mapping[str, int], latent_shape: Sequence[int], dtype: jnp.dtype) -> dict[str, Any]:
    """Return the shapes and shardings of cached keys and values, [F, W, H, C'], for latents of shape [1, C, F, H, W]."""
    _, _, frames, height, width = latent_shape
    strips = Strips.choose(layout, height, width, pads=True)
    rows = width if strips.is_transposed else height
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
    """Decode unscaled latents [1, C, 1, H, W] to pixels [1, 3, 1 or 4, height, width] in [-1, 1]. Also return the new caches.
    `weights` is the result of `arrange`. `before` are the caches that the previous call returned. For the video's first frame,
    pass zeros of the shapes that `describe_keys` returns, and 0 at `FRAMES_SEEN`."""
    pixels, after = _run(LayerRunner.decode, latents.shape[3:], vae, weights, latents, before, layout, interpret)
    return pixels.clip(-1.0, 1.0), after


def encode(
    vae: AutoencoderKLHunyuanVideo15, weights: Weights, pixels: jax.Array, before: Caches, layout: Layout, interpret: bool = False
) -> tuple[jax.Array, Caches]:
    """Encode pixels [1, 3, 1 or 4, height, width] to the posterior's moments [1, 2 C, 1, H, W]. Also return the new caches."""
    size = tuple(side // vae.config.spatial_compression_ratio for side in pixels.shape[3:])
    return _run(LayerRunner.encode, size, vae, weights, pixels, before, layout, interpret)


def _run(
    way: Callable,
    size: Sequence[int],
    vae: AutoencoderKLHunyuanVideo15,
    weights: Weights,
    array: jax.Array,
    before: Caches,
    layout: Layout,
    interpret: bool,
) -> tuple[jax.Array, Caches]:
    """Run `way` (`LayerRunner.encode` or `LayerRunner.decode`) on every chip's strip of `array` [1, C, F, height, width]. `size`
    is the height and width of the latents. Returns the joined result with the same axes, and the new caches."""
    latent_height, latent_width = size
    strips = Strips.choose(layout, latent_height, latent_width, pads=True)
    columns, rows = array.shape[3:] if strips.is_transposed else array.shape[:2:-1]
    own = dict(weights)
    if strips.is_transposed:  # swap rows and columns of the convolution kernels
        own = {name: swap_rows_and_columns(one, frames=3) if one.ndim == 3 else one for name, one in weights.items()}
    norms = ((name, module) for name, module in vae.named_modules() if isinstance(module, HunyuanVideo15RMS_norm))
    widths = {name: module.gamma.numel() for name, module in norms}
    seen = before[FRAMES_SEEN]
    kept = {name: cache for name, cache in before.items() if name != FRAMES_SEEN}

    def one_chip(own: Weights, frames: jax.Array, kept: Caches, seen: jax.Array) -> tuple[jax.Array, Caches]:
        chip = Chip(axes=strips.axes, is_transposed=strips.is_transposed, interpret=interpret)
        padding = columns // strips.columns * strips.padding
        runner = LayerRunner(chip, own, widths, kept, rows, padding, seen)
        result, channels = way(runner, vae, frames)
        return strips.from_strip(result[:, :, : runner.rows], channels), runner.after

    result, after = strips.run_on_chips(one_chip, own, strips.to_strips(array, padded_rows(rows)), kept, seen)
    return result[None], after | {FRAMES_SEEN: seen + 1}
