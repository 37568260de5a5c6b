"""hunyuan-tiny's video autoencoder, as training sees it.

Its latents are normalised by one factor for all channels, and shortcuts stand beside its outermost convolutions, so a finished
one cannot be evened out as Wan's is. Training holds the latents' second moments to the identity's instead (`spread_weight`).
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLHunyuanVideo15

from training.hunyuan_configs import VAE
from training.train_vae import Autoencoder


def _decode(vae: AutoencoderKLHunyuanVideo15, latents: torch.Tensor) -> torch.Tensor:
    return vae.decoder(latents)


def _measure_factor(vae: AutoencoderKLHunyuanVideo15, flat: torch.Tensor, latent_noise: float) -> None:
    """Keep the factor that gives latents `flat` [C, N] a mean square of one."""
    del latent_noise
    vae.register_to_config(scaling_factor=flat.square().mean().rsqrt().item())


HUNYUAN_AUTOENCODER = Autoencoder(
    create=lambda: AutoencoderKLHunyuanVideo15(**VAE),
    load=lambda folder: AutoencoderKLHunyuanVideo15.from_pretrained(folder, torch_dtype=torch.float32),
    decode=_decode,
    finish=_measure_factor,
    encoding=("encoder",),
)
