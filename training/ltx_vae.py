"""ltx-tiny's video autoencoder for training."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLLTX2Video

from training.ltx_configs import VAE
from training.train_vae import Autoencoder


def _create() -> AutoencoderKLLTX2Video:
    return AutoencoderKLLTX2Video(**VAE)


def _decode(vae: AutoencoderKLLTX2Video, latents: torch.Tensor) -> torch.Tensor:
    return vae.decoder(latents)


@torch.no_grad()
def _keep_statistics(vae: AutoencoderKLLTX2Video, flat: torch.Tensor, latent_noise: float) -> None:
    """Store mean and spread of each channel of `flat` [C, N]. The spread is at least the training's noise."""
    vae.latents_mean.copy_(flat.mean(1))
    vae.latents_std.copy_(flat.std(1).clamp(min=latent_noise))


LTX_AUTOENCODER = Autoencoder(
    create=_create,
    load=AutoencoderKLLTX2Video.from_pretrained,
    decode=_decode,
    finish=_keep_statistics,
    encoding=("encoder",),
)
