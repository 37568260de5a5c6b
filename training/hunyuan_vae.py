"""hunyuan-tiny's video autoencoder for training.

Its latents have one factor for all channels, and its outermost convolutions have shortcuts. So its axes cannot be equalised after
training, as Wan's axes are. Instead, training keeps the latents' second moments close to the identity matrix (`spread_weight`).
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLHunyuanVideo15

from training.hunyuan_configs import VAE
from training.train_vae import Autoencoder


def _decode(vae: AutoencoderKLHunyuanVideo15, latents: torch.Tensor) -> torch.Tensor:
    return vae.decoder(latents)


def _measure_factor(vae: AutoencoderKLHunyuanVideo15, flat: torch.Tensor, latent_noise: float) -> None:
    """Store the factor that gives latents `flat` [C, N] a mean square of one."""
    del latent_noise
    vae.register_to_config(scaling_factor=flat.square().mean().rsqrt().item())


HUNYUAN_AUTOENCODER = Autoencoder(
    create=lambda: AutoencoderKLHunyuanVideo15(**VAE),
    load=lambda folder: AutoencoderKLHunyuanVideo15.from_pretrained(folder, torch_dtype=torch.float32),
    decode=_decode,
    finish=_measure_factor,
    encoding=("encoder",),
)
