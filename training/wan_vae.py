"""wan-tiny's video autoencoder for training."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

from training.model_configs import VAE
from training.train_vae import Autoencoder


def _create() -> AutoencoderKLWan:
    return AutoencoderKLWan(**VAE, latents_mean=[0.0] * VAE["z_dim"], latents_std=[1.0] * VAE["z_dim"])


def _decode(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    """Decode like `vae.decode`, without the final clamp."""
    vae.clear_cache()
    hidden = vae.post_quant_conv(latents)
    frames = []
    for index in range(hidden.shape[2]):
        vae._conv_idx = [0]
        first = {"first_chunk": True} if index == 0 else {}
        frames.append(vae.decoder(hidden[:, :, index : index + 1], feat_cache=vae._feat_map, feat_idx=vae._conv_idx, **first))
    vae.clear_cache()
    return unpatchify(torch.cat(frames, 2), patch_size=vae.config.patch_size)


@torch.no_grad()
def even_out_latents(vae: AutoencoderKLWan, flat: torch.Tensor, latent_noise: float) -> None:
    """Rotate the latent space of `flat` [C, N] to its principal axes, halve their spread on a logarithmic scale, and store the
    statistics.

    The rotation and the scales are merged into the convolutions beside the latents, so encoding and decoding stay inverse. An
    axis with less variance than the training's noise is scaled by the noise instead of to unit variance.
    """
    variance, axes = torch.linalg.eigh(torch.cov(flat.double()))
    scale = variance.clamp(min=1e-2 * variance.max()) ** -0.25
    forward, backward = (scale[:, None] * axes.T).float(), (axes / scale).float()
    _turn_outputs(vae.quant_conv, forward, 2 * torch.log(latent_noise * scale).float())
    vae.post_quant_conv.weight.copy_(torch.einsum("oi...,ij->oj...", vae.post_quant_conv.weight, backward))
    flat = forward @ flat
    spread = torch.maximum(flat.std(1), latent_noise * scale.float())
    vae.register_to_config(latents_mean=flat.mean(1).tolist(), latents_std=spread.tolist())


def _turn_outputs(convolution: torch.nn.Conv3d, matrix: torch.Tensor, log_variance: torch.Tensor) -> None:
    """Apply a matrix to the first half of the outputs, the means, and set the second half to a constant."""
    weight, bias, channels = convolution.weight, convolution.bias, len(matrix)
    weight[:channels] = torch.einsum("oc,c...->o...", matrix, weight[:channels])
    bias[:channels] = matrix @ bias[:channels]
    weight[channels:] = 0.0
    bias[channels:] = log_variance


WAN_AUTOENCODER = Autoencoder(
    create=_create,
    load=AutoencoderKLWan.from_pretrained,
    decode=_decode,
    finish=even_out_latents,
    encoding=("encoder", "quant_conv"),
)
