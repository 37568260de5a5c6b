"""LTX-2's latent upsampler: the video's latents at twice their size, between the steps at half the size and those that refine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import torch
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel

from backend.families.kit.modules import Encoder, call, settings_of
from backend.families.ltx.autoencoders import normalised, plain
from backend.runtime.torch_modules import call_module

Weights = Mapping[str, jax.Array]


class LatentUpsampler(Encoder):
    """The class's own modules, on every chip the whole; weights are passed to every call. It sees latents as the autoencoder has
    them, so the autoencoder's mean and spread of channels are taken out before and put in again after."""

    def __init__(self, config: Mapping[str, Any], scaling_factor: float) -> None:
        """`scaling_factor` is the autoencoder's."""
        self._factor = scaling_factor
        with torch.device("meta"):
            self._model = LTX2LatentUpsamplerModel.from_config(settings_of(config)).eval()

    def enlarge(self, weights: Weights, vae: Weights, latents: jax.Array) -> jax.Array:
        """Latents [1, C, F, 2 H, 2 W] float32 of latents [1, C, F, H, W], both as the transformer sees them."""
        dtype = weights["final_conv.weight"].dtype
        made = call_module(self._model, weights, call, plain(vae, latents, self._factor).astype(dtype))
        return normalised(vae, made, self._factor)
