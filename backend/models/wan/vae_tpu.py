"""The video autoencoders of Wan 2.1 and 2.2 for TPUs. They run the layers of diffusers' module with `kernels.causal_conv`.

Every chip computes one strip of columns of the frames. The convolution's kernel also adds the residual and computes the norm and
SiLU that follow. The results are the results of `backend.models.wan.vae` in bfloat16, except that norms read float32.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm

from backend.checkpoints.json_files import Config
from backend.models.common.strip_layers import Caches, Chip, Weights
from backend.models.common.strips import Strips, padded_vector
from backend.models.wan.vae_tpu_layers import LayerRunner
from backend.runtime.mesh import Layout
from kernels.causal_conv import arrange_weight, swap_rows_and_columns
from kernels.causal_conv_tiling import padded_channels, padded_rows

SPATIAL_SCALE = 8  # height of the network's input divided by the latents' height; Wan 2.2's input is patches, not pixels
# The values that config.json of Wan 2.2's autoencoder must have for this module.
RESIDUAL = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True], "patch_size": 2}


def can_run(config: Config) -> bool:
    if config.get("attn_scales") or config["scale_factor_spatial"] != SPATIAL_SCALE * (config.get("patch_size") or 1):
        return False
    if config.get("is_residual"):
        return all(config.get(name) == value for name, value in RESIDUAL.items())
    return config.get("patch_size") is None


def arrange(vae: AutoencoderKLWan, weights: Weights) -> dict[str, jax.Array]:
    """Convert the checkpoint's tensors to the shapes that the kernels need. This runs once per model, not once per frame."""
    arranged = dict(weights)
    for name, module in vae.named_modules():
        if isinstance(module, WanRMS_norm):
            arranged[f"{name}.gamma"] = padded_vector(weights[f"{name}.gamma"])
        elif isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d):
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            weight = weight if weight.ndim == 5 else weight[:, :, None]
            if weight.shape[3] == 3:
                arranged |= {f"{name}.weight": arrange_weight(weight), f"{name}.bias": padded_vector(bias)}
                continue
            parts = 3 if name.endswith("to_qkv") else 1
            if name.endswith("time_conv"):
                parts = max(1, weight.shape[0] // weight.shape[1])
            matrices = jnp.moveaxis(weight[..., 0, 0], 2, 0)  # [frames of the kernel, output channels, input channels]
            split = matrices.reshape(matrices.shape[0], parts, -1, matrices.shape[2])
            padding = [(0, 0), (0, 0)] + [(0, padded_channels(size) - size) for size in split.shape[2:]]
            # Each part of a bias is padded separately. The bias of attention has three parts: query, key and value. The bias of
            # a convolution in the decoder that makes two frames from one has two parts.
            biases = jnp.stack([padded_vector(part) for part in bias.reshape(parts, -1)])
            arranged |= {f"{name}.weight": jnp.pad(split, padding).transpose(0, 3, 1, 2), f"{name}.bias": biases}
    return arranged


def decode(
    vae: AutoencoderKLWan, weights: Weights, latents: jax.Array, caches: Caches | None, layout: Layout, interpret: bool = False
) -> tuple[jax.Array, Caches]:
    """Decode one latent frame [1, C, 1, H, W], not normalised, to pixels [1, 3, 1 or 4, height, width] in [-1, 1].

    `weights` is the result of `arrange`. `caches` are from the previous call, None for the first latent frame. Also returns the
    new caches.
    """
    run = functools.partial(_run, vae, layout, latents.shape[3:], interpret, LayerRunner.decode)
    pixels, after = run(weights, latents, caches, patch=vae.config.patch_size or 1)
    return pixels[None].clip(-1.0, 1.0), after


def encode(
    vae: AutoencoderKLWan, weights: Weights, pixels: jax.Array, caches: Caches | None, layout: Layout, interpret: bool = False
) -> tuple[jax.Array, Caches]:
    """Encode pixels [1, 3, 1 or 4, height, width] in [-1, 1] to the moments [1, 2 C, 1, H, W] of a posterior, like `decode`."""
    patch = vae.config.patch_size or 1
    batch, channels, frames, height, width = pixels.shape
    # Split the pixels into patches. The channels of a patch have the same order as in diffusers.
    parts = pixels.reshape(batch, channels, frames, height // patch, patch, width // patch, patch)
    pixels = parts.transpose(0, 1, 6, 4, 2, 3, 5).reshape(batch, -1, frames, height // patch, width // patch)
    size = tuple(side // SPATIAL_SCALE for side in pixels.shape[3:])
    run = functools.partial(_run, vae, layout, size, interpret, LayerRunner.encode)
    moments, after = run(weights, pixels, caches, shrinks=SPATIAL_SCALE)
    return moments[None], after


def _run(
    vae: AutoencoderKLWan,
    layout: Layout,
    size: Sequence[int],
    interpret: bool,
    method: Callable,
    weights: Weights,
    array: jax.Array,
    caches: Caches | None,
    *,
    shrinks: int = 1,
    patch: int = 1,
) -> tuple[jax.Array, Caches]:
    """Run `method` of `LayerRunner` on every chip, for latents with the height and width `size`.

    `array` is [1, C, F, `shrinks` * latent height, `shrinks` * latent width]. The last convolution returns patches of `patch` x
    `patch` pixels, which are split into pixels. Returns the joined result [C, F, height, width], and the new caches.
    """
    height, width = size
    strips = Strips.choose(layout, height, width)
    rows = width if strips.is_transposed else height
    if strips.is_transposed:  # only a result of `arrange_weight` has three axes
        weights = {
            name: swap_rows_and_columns(value, frames=1 if ".resample." in name else 3) if value.ndim == 3 else value
            for name, value in weights.items()
        }
    widths = {name: module.gamma.numel() for name, module in vae.named_modules() if isinstance(module, WanRMS_norm)}

    def one_chip(chip_weights: Weights, frames: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
        chip = Chip(axes=strips.axes, is_transposed=strips.is_transposed, interpret=interpret)
        runner = LayerRunner(chip, chip_weights, widths, caches, shrinks * rows)
        frames, channels = method(runner, vae, frames)
        frames = frames[:, :, : runner.rows]
        if patch == 1:
            return strips.from_strip(frames, channels), runner.after
        # Products with matrices of zeros and ones move the channels to other axes, without rounding. On a TPU these products are
        # faster than copies.
        first = jnp.einsum("kc,fwhc->kfwh", jnp.eye(channels, frames.shape[3], dtype=frames.dtype), frames)
        # As in diffusers, the channels have a patch's pixels column by column. A transposed strip has the
        # video's rows as columns. Therefore the rows and columns of each patch are swapped too.
        parts = first.reshape(-1, patch, patch, *first.shape[1:])
        parts = parts.swapaxes(1, 2) if strips.is_transposed else parts
        to_columns, to_rows = (jnp.eye(patch * side, dtype=frames.dtype).reshape(-1, side, patch) for side in first.shape[2:])
        parts = jnp.einsum("xwa,cabfwh->cbfxh", to_columns, parts)
        pixels = jnp.einsum("yhb,cbfxh->cfxy" if strips.is_transposed else "yhb,cbfxh->cfyx", to_rows, parts)
        return pixels, runner.after

    return strips.run_on_chips(one_chip, weights, strips.to_strips(array, shrinks * padded_rows(rows)), caches)
