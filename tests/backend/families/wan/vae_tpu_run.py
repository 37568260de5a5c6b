"""Run by `test_tpu_autoencoder.py` on as many virtual devices as it says: a tiny random autoencoder, both ways.

Arguments are a kind (wan2.1 or wan2.2) and latent sizes HEIGHT,WIDTH. Prints one JSON object: for each the largest differences of three latent frames' pixels,
then of their latents.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import AutoencoderKLWan

from backend.families.wan import vae_tpu as tpu_autoencoder
from backend.families.wan.vae import VideoAutoencoder
from backend.runtime.mesh import Layout, MeshPlan

VAE = dict(
    base_dim=8,
    z_dim=4,
    dim_mult=[1, 2, 4, 4],
    num_res_blocks=1,
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
FRAMES = 3


def decode_both(size: tuple[int, int], module: AutoencoderKLWan, layout: Layout) -> list[float]:
    weights = {name: jnp.asarray(value.detach().numpy()) for name, value in module.state_dict().items()}
    reference = VideoAutoencoder(dict(module.config), Layout.over(MeshPlan(), jax.devices()[:1]))
    first, following = jax.jit(reference.decode_first), jax.jit(reference.decode_next)
    decode = jax.jit(lambda frame, caches: tpu_autoencoder.decode(module, arranged, frame, caches, layout, interpret=True))
    arranged, latents = tpu_autoencoder.arrange(module, weights), jax.random.normal(jax.random.key(1), (1, 4, FRAMES, *size))
    errors, caches, own = [], None, None
    for index in range(FRAMES):
        frame = latents[:, :, index : index + 1]
        pixels, caches = first(weights, frame) if caches is None else following(weights, frame, caches)
        made, own = decode(frame * 1.5 + 0.1, own)
        errors.append(float(np.abs(np.asarray(made) - np.asarray(pixels)).max()))
    return errors


def encode_both(size: tuple[int, int], module: AutoencoderKLWan, layout: Layout) -> list[float]:
    """Largest differences of normalised latents, latent frame by latent frame."""
    weights = {name: jnp.asarray(value.detach().numpy()) for name, value in module.state_dict().items()}
    reference = VideoAutoencoder(dict(module.config), Layout.over(MeshPlan(), jax.devices()[:1]))
    first, following = jax.jit(reference.encode_first), jax.jit(reference.encode_next)
    arranged = tpu_autoencoder.arrange(module, weights)
    encode = jax.jit(lambda frames, caches: tpu_autoencoder.encode(module, arranged, frames, caches, layout, interpret=True))
    height, width = (side * module.config.scale_factor_spatial for side in size)
    errors, caches, own = [], None, None
    for index in range(FRAMES):
        pixels = jax.random.uniform(jax.random.key(index), (1, 3, 4 if index else 1, height, width), minval=-1.0)
        latents, caches = first(weights, pixels) if caches is None else following(weights, pixels, caches)
        moments, own = encode(pixels, own)
        made = (moments[:, :4] - 0.1) / 1.5
        errors.append(float(np.abs(np.asarray(made) - np.asarray(latents)).max()))
    return errors


def main() -> None:
    torch.manual_seed(0)
    module = AutoencoderKLWan(**KINDS[sys.argv[1]]).eval()
    plan = MeshPlan(dp=2, sp=2, tp=2) if len(jax.devices()) == 8 else MeshPlan()
    layout = Layout.over(plan, jax.devices())
    sizes = [tuple(int(side) for side in words.split(",")) for words in sys.argv[2:]]
    found = {
        f"{height},{width}": decode_both((height, width), module, layout) + encode_both((height, width), module, layout)
        for height, width in sizes
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
