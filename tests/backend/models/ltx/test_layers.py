"""Our layers of LTX-2's autoencoders and vocoders equal diffusers' classes, on one device and on several."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.pipelines.ltx2 import LTX2Vocoder, LTX2VocoderWithBWE
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel

from backend.models.ltx.autoencoders import convolve_by_product
from backend.models.ltx.upsampler import LatentUpsampler
from backend.models.ltx.vocoder import vocode, vocode_with_bandwidth_extension
from tests.backend.models.ltx.tiny_video_vae import CONFIGS, distances
from tests.many_devices import told_by

BOUND = 1e-4  # float32: some 30 convolutions of up to 32 x 27 products, summed in another order


@pytest.mark.parametrize("name", CONFIGS)
def test_the_video_autoencoder_is_diffusers(name):
    assert max(distances(name, 2, 3).values()) <= BOUND


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)], ids=str)
def test_a_convolution_by_one_product_is_pytorchs(stride):
    """The audio autoencoder runs this way on a TPU. The tolerance covers float32 sums of 45 products in another order."""
    torch.manual_seed(0)
    module, values = torch.nn.Conv2d(5, 7, (3, 3), stride=stride).requires_grad_(False), torch.randn(2, 5, 9, 12)
    theirs = module(values).numpy()
    arrays = (jnp.asarray(one.numpy()) for one in (values, module.weight, module.bias))
    np.testing.assert_allclose(convolve_by_product(*arrays, stride=stride), theirs, atol=1e-5)


def test_strips_on_eight_devices_are_the_whole():
    """Columns, rows, and a picture of which only four devices get a part."""
    found = told_by("tests.backend.models.ltx.tiny_video_vae")
    assert len(found) == 9 and max(value for one in found for value in one.values()) <= BOUND


def vocoders() -> dict[str, torch.nn.Module]:
    """Return the vocoder of 2.0, the same with 2.3's waves in place of ramps, and the vocoder of 2.3."""
    small = dict(in_channels=32, hidden_channels=64)
    wider = dict(bwe_in_channels=32, bwe_hidden_channels=64, filter_length=128, window_length=128, num_mel_channels=16)
    made = {
        "ramps": LTX2Vocoder(**small),
        "waves": LTX2Vocoder(**small, act_fn="snakebeta"),
        "smooth waves": LTX2Vocoder(**small, act_fn="snakebeta", antialias=True, final_act_fn=None, final_bias=False),
        "wider": LTX2VocoderWithBWE(**small, **wider),
    }
    for vocoder in made.values():
        for key, value in vocoder.named_buffers():
            if "basis" in key:
                value.copy_(0.1 * torch.randn_like(value))
        for value in vocoder.parameters():  # zeros and ones would hide a mix-up
            value.data += 0.05 * torch.randn_like(value)
    return made


@pytest.mark.parametrize(("kind", "frames"), [("ramps", 1), ("ramps", 9), ("waves", 9), ("smooth waves", 9), ("wider", 7)])
def test_a_vocoder_is_diffusers(kind, frames):
    torch.manual_seed(1)
    vocoder, spectrum = vocoders()[kind].eval(), torch.randn(1, 2, frames, 16)
    with torch.no_grad():
        theirs = vocoder(spectrum)[0].numpy()
    weights = {key: jnp.asarray(value.detach().numpy()) for key, value in vocoder.state_dict().items()}
    way = functools.partial(vocode_with_bandwidth_extension if kind == "wider" else vocode, settings=vocoder.config)
    ours = jax.jit(lambda weights, spectrum: way(weights, spectrum=spectrum))(weights, jnp.asarray(spectrum[0].numpy()))
    # float32: sums of up to 700 products, five levels; the wider one takes logarithms near 0, which enlarge rounding
    bound = {"wider": 1e-4}.get(kind, 2e-5)
    np.testing.assert_allclose(ours, theirs, atol=bound * np.abs(theirs).max(), rtol=0)


@pytest.mark.parametrize("is_rational", [False, True])
def test_the_latent_upsampler_is_diffusers(is_rational):
    config = dict(in_channels=8, mid_channels=32, num_blocks_per_stage=2, use_rational_resampler=is_rational)
    torch.manual_seed(3)
    theirs = LTX2LatentUpsamplerModel(**config).eval().requires_grad_(False)
    for value in theirs.parameters():  # zeros and ones would hide a mix-up
        value.add_(0.05 * torch.randn_like(value))
    latents = torch.randn(1, 8, 3, 4, 5)
    weights = {key: jnp.asarray(value.numpy()) for key, value in theirs.state_dict().items()}
    plain = {"latents_mean": jnp.zeros(8), "latents_std": jnp.ones(8)}
    ours = LatentUpsampler(theirs.config, 1.0).enlarge(weights, plain, jnp.asarray(latents.numpy()))
    np.testing.assert_allclose(ours, theirs(latents).numpy(), atol=BOUND)
