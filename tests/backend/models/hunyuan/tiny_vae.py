"""A tiny random autoencoder of HunyuanVideo-1.5: every kind of layer, few channels."""

import torch
from diffusers import AutoencoderKLHunyuanVideo15

from tests.gradients import without_gradients

LATENT_CHANNELS = 4
CONFIG = dict(
    in_channels=3,
    out_channels=3,
    latent_channels=LATENT_CHANNELS,
    block_out_channels=(8, 16, 16, 32),
    layers_per_block=1,
    spatial_compression_ratio=8,
    temporal_compression_ratio=4,
    scaling_factor=1.03682,
)


@without_gradients
def random_vae(**changes) -> AutoencoderKLHunyuanVideo15:
    """Return the same autoencoder each time. The weights of norms differ from 1 too."""
    torch.manual_seed(0)
    vae = AutoencoderKLHunyuanVideo15(**CONFIG | changes).eval()
    for name, parameter in vae.named_parameters():
        if name.endswith("gamma"):
            parameter.uniform_(0.5, 1.5)
    return vae
