"""Run by `test_vae_tpu.py` with eight virtual devices: a tiny random autoencoder, both ways.

Arguments are cases KIND,WAY,DEVICES,HEIGHT,WIDTH: wan2.1 or wan2.2, decode or encode, size of the latents. Prints one JSON object:
for each case the largest differences of three latent frames' pixels or latents.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping

import jax
import numpy as np
import torch
from diffusers import AutoencoderKLWan

from backend.models.wan import vae_tpu as tpu_autoencoder
from backend.runtime.mesh import Layout, MeshPlan
from tests.gradients import without_gradients

VAE = dict(
    base_dim=8,
    z_dim=4,
    dim_mult=[1, 2, 4, 4],
    attn_scales=[],
    temperal_downsample=[False, True, True],
    latents_mean=[0.1] * 4,
    latents_std=[1.5] * 4,
    scale_factor_spatial=8,
    scale_factor_temporal=4,
)
RESIDUAL = dict(
    decoder_base_dim=12,
    is_residual=True,
    patch_size=2,
    in_channels=12,
    out_channels=12,
    scale_factor_spatial=16,
)
KINDS = {"wan2.1": VAE, "wan2.2": VAE | RESIDUAL}
# a decoder has one more than configured: one per level on both ways, and two in the middle
RES_BLOCKS = {"decode": 0, "encode": 1}
PLANS = {1: MeshPlan(), 8: MeshPlan(dp=2, sp=2, tp=2)}
FRAMES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny autoencoder, its weights from `arrange`, latents of `size` (height, width), and the layout of chips."""

    module: AutoencoderKLWan
    weights: Mapping[str, jax.Array]
    size: tuple[int, int]
    layout: Layout


@without_gradients
def decode_both(case: Case) -> list[float]:
    """Return the largest differences of pixels per latent frame."""
    decode = jax.jit(functools.partial(tpu_autoencoder.decode, case.module, layout=case.layout, interpret=True))
    latents = 1.5 * torch.randn(1, 4, FRAMES, *case.size) + 0.1
    reference = frames_of(case.module.decode(latents).sample)
    errors, caches = [], None
    for index in range(FRAMES):
        pixels, caches = decode(case.weights, latents[:, :, index : index + 1].numpy(), caches)
        errors.append(largest_difference(pixels, reference[index]))
    return errors


@without_gradients
def encode_both(case: Case) -> list[float]:
    """Return the largest differences of normalised latents per latent frame."""
    encode = jax.jit(functools.partial(tpu_autoencoder.encode, case.module, layout=case.layout, interpret=True))
    pixels = 2 * torch.rand(1, 3, 4 * FRAMES - 3, *(side * case.module.config.scale_factor_spatial for side in case.size)) - 1
    reference = case.module.encode(pixels).latent_dist.mean
    errors, caches = [], None
    for index, frames in enumerate(frames_of(pixels)):
        moments, caches = encode(case.weights, frames.numpy(), caches)
        errors.append(largest_difference(moments[:, :4], reference[:, :, index : index + 1]) / 1.5)
    return errors


def frames_of(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the pixel frames of each latent frame: one, then four at a time."""
    return pixels.split([1] + [4] * (FRAMES - 1), dim=2)


def largest_difference(ours: jax.Array, reference: torch.Tensor) -> float:
    return float(np.abs(np.asarray(ours) - reference.numpy()).max())


WAYS = {"decode": decode_both, "encode": encode_both}


def run(kind: str, way: str, devices: int, size: tuple[int, int]) -> list[float]:
    """Return the case's largest differences per latent frame."""
    torch.manual_seed(0)
    module = AutoencoderKLWan(**KINDS[kind], num_res_blocks=RES_BLOCKS[way]).eval()
    arrange = jax.jit(functools.partial(tpu_autoencoder.arrange, module))
    weights = arrange({name: value.detach().numpy() for name, value in module.state_dict().items()})
    layout = Layout.create(PLANS[devices], jax.devices()[:devices])
    return WAYS[way](Case(module=module, weights=weights, size=size, layout=layout))


def main() -> None:
    found = {}
    for words in sys.argv[1:]:
        kind, way, devices, height, width = words.split(",")
        found[words] = run(kind, way, int(devices), (int(height), int(width)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
