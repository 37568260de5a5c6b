"""Tiny video autoencoders of LTX-2 in the published forms, and their difference from diffusers' class on this process's
devices.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import AutoencoderKLLTX2Video

from backend.models.ltx.autoencoders import VideoAutoencoder
from backend.runtime.mesh import Layout, MeshPlan

OLD = dict(  # LTX-2.0's decoder: three enlargements, each adds its enlarged input; mirrored borders
    latent_channels=8,
    block_out_channels=(8, 8, 16, 16),
    decoder_block_out_channels=(8, 16, 32),
    layers_per_block=(1, 2, 1, 1, 1),
    decoder_layers_per_block=(1, 2, 1, 1),
    decoder_causal=False,
    spatial_compression_ratio=32,
    temporal_compression_ratio=8,
)
NEW = OLD | dict(  # 2.3's decoder: four enlargements, some of space or time alone; zeros as borders
    decoder_block_out_channels=(8, 16, 16, 32),
    decoder_layers_per_block=(1, 2, 1, 1, 1),
    decoder_spatio_temporal_scaling=(True,) * 4,
    decoder_inject_noise=(False,) * 5,
    upsample_type=("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
    upsample_residual=(False,) * 4,
    upsample_factor=(2, 2, 1, 2),
    decoder_spatial_padding_mode="zeros",
)
UNEQUAL = OLD | dict(decoder_block_out_channels=(8, 8, 16), upsample_factor=(2, 1, 2), decoder_causal=True)
CONFIGS = {"2.0": OLD, "2.3": NEW, "other widths": UNEQUAL}


def distances(name: str, height: int, width: int) -> dict[str, float]:
    """Return the largest differences of pixels and of a clip's latents for latents of this size. The values are of order one."""
    torch.manual_seed(0)
    vae = AutoencoderKLLTX2Video(**CONFIGS[name]).eval()
    vae.latents_mean.copy_(0.1 * torch.randn(8))
    vae.latents_std.copy_(1 + 0.2 * torch.rand(8))
    layout = Layout.create(MeshPlan(sp=jax.device_count()), jax.devices())
    ours = VideoAutoencoder(vae.config, layout)
    weights = {key: jnp.asarray(value.numpy()) for key, value in vae.state_dict().items()}
    latents, pixels = torch.randn(1, 8, 3, height, width), torch.rand(1, 3, 9, 32 * height, 32 * width) * 2 - 1
    mean, std = (value.view(1, -1, 1, 1, 1) for value in (vae.latents_mean, vae.latents_std))
    with torch.no_grad():
        decoded = vae.decode(latents * std + mean).sample
        encoded = (vae.encode(pixels).latent_dist.mode() - mean) / std
    made = jax.jit(ours.decode)(weights, jnp.asarray(latents.numpy())), jax.jit(ours.encode)(weights, jnp.asarray(pixels.numpy()))
    names = ("pixels", "latents")
    return {
        key: float(np.abs(np.asarray(one) - other.numpy()).max() / other.abs().max())
        for key, one, other in zip(names, made, (decoded, encoded), strict=True)
    }


if __name__ == "__main__":  # several devices need a separate process
    print(json.dumps([distances(name, *size) for name in CONFIGS for size in ((2, 8), (8, 3), (3, 4))]))
