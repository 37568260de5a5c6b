"""LTX-2's autoencoders and vocoders by our own layers are diffusers' classes, on one device and on several."""

import json
import subprocess
import sys

import pytest
import torch
from diffusers.pipelines.ltx2 import LTX2Vocoder, LTX2VocoderWithBWE

from backend.families.ltx.sound_layers import with_products
from backend.settings import PROJECT_FOLDER
from tests.backend.families.ltx.tiny_video_vae import CONFIGS, distances
from tests.many_devices import environment

BOUND = 1e-4  # float32: some 30 convolutions of up to 32 x 27 products, summed in another order


@pytest.mark.parametrize("name", CONFIGS)
def test_the_video_autoencoder_is_diffusers(name):
    assert max(distances(name, 2, 3).values()) <= BOUND


def test_strips_on_eight_devices_are_the_whole():
    """Columns, rows, and a picture of which only four devices get a part."""
    words = [sys.executable, "-W", "ignore", "-m", "tests.backend.families.ltx.tiny_video_vae"]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment(8), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 9 and max(value for one in found for value in one.values()) <= BOUND


def vocoders() -> dict[str, torch.nn.Module]:
    """Of 2.0, the same with 2.3's waves in place of ramps, and of 2.3."""
    small = dict(in_channels=32, hidden_channels=64)
    wider = dict(bwe_in_channels=32, bwe_hidden_channels=64, filter_length=128, window_length=128, num_mel_channels=16)
    made = {
        "ramps": LTX2Vocoder(**small),
        "waves": LTX2Vocoder(**small, act_fn="snakebeta"),
        "wider": LTX2VocoderWithBWE(**small, **wider),
    }
    for vocoder in made.values():
        for key, value in vocoder.named_buffers():
            if "basis" in key:
                value.copy_(0.1 * torch.randn_like(value))
    return made


@pytest.mark.parametrize("kind", ["ramps", "waves", "wider"])
@pytest.mark.parametrize("frames", [1, 7, 24])
def test_a_vocoder_by_products_is_diffusers(kind, frames):
    torch.manual_seed(1)
    vocoder, spectrum = vocoders()[kind].eval(), torch.randn(1, 2, frames, 16)
    with torch.no_grad():
        theirs = vocoder(spectrum)
        ours = with_products(vocoder)(spectrum)
    assert ours.shape == theirs.shape
    bound = {"wider": 1e-4}.get(kind, 1e-5)  # the wider one takes a logarithm of magnitudes near 0, which enlarges rounding
    torch.testing.assert_close(ours, theirs, atol=bound * theirs.abs().max().item(), rtol=0)
