"""Compare LTX-2's audio with the values that diffusers publishes with its own tests.

Those tests read Gemma's weights from the Hub, so a whole video cannot be compared. The last eight samples can be compared: the
tests' autoencoder decodes five latents to five mel frames and fills the other twelve with silence. The end therefore depends
only on autoencoder and vocoder. Source: huggingface/diffusers, tests/pipelines/ltx2/test_ltx2.py (the values, and 1e-4) and
testing_utils.py (the components).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2 import LTX2Vocoder

from backend.models.ltx.autoencoders import SoundNetworks
from backend.runtime.mesh import Layout, MeshPlan

PUBLISHED = (0.0672, -0.0069, 0.0688, 0.0097, 0.0808, 0.1231, 0.0986, 0.0739)
TOLERANCE = 1e-4  # the published one; the values are rounded to it


def published_networks() -> tuple[AutoencoderKLLTX2Audio, LTX2Vocoder]:
    """Return diffusers' tiny networks, each created after seeding with 0."""
    torch.manual_seed(0)
    autoencoder = AutoencoderKLLTX2Audio(
        base_channels=4,
        output_channels=2,
        ch_mult=(1,),
        num_res_blocks=1,
        attn_resolutions=None,
        in_channels=2,
        resolution=32,
        latent_channels=2,
        norm_type="pixel",
        causality_axis="height",
        mid_block_add_attention=False,
        sample_rate=16000,
        mel_hop_length=160,
        is_causal=True,
        mel_bins=8,
    )
    torch.manual_seed(0)
    vocoder = LTX2Vocoder(
        in_channels=16,
        hidden_channels=32,
        out_channels=2,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
        leaky_relu_negative_slope=0.1,
        output_sampling_rate=16000,
    )
    return autoencoder, vocoder


@pytest.mark.parametrize("seed", [0, 1])
def test_the_end_of_the_published_sound_is_ours(seed):
    """The values of the five latents do not matter."""
    parts = published_networks()
    networks = SoundNetworks(*(dict(part.config) | {"_class_name": type(part).__name__} for part in parts), _one_device())
    weights = [{name: jnp.asarray(value.detach().numpy()) for name, value in part.state_dict().items()} for part in parts]
    latents = jnp.asarray(np.random.default_rng(seed).standard_normal((1, 2, 5, 2)), jnp.float32)
    samples = networks.vocode(weights[1], networks.decode(weights[0], latents))
    assert samples.shape == (2, 68)
    np.testing.assert_allclose(np.asarray(samples).ravel()[-8:], PUBLISHED, atol=TOLERANCE)


def _one_device() -> Layout:
    return Layout.create(MeshPlan(), jax.devices()[:1])
