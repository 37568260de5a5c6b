"""The TPU's autoencoder in interpret mode against diffusers' own on whole clips, on one device and on four."""

import pytest

from tests.many_devices import told_by

ALONE, SHARED = "1,3,2", "4,4,3"  # devices, height and width of latents; four share out the height, because it divides
TOLERANCE = 2e-5  # pixels in [-1, 1], float32: the same sums in another order, through some fifteen convolutions


@pytest.mark.parametrize("case", [SHARED, pytest.param(ALONE, marks=pytest.mark.slow)])
def test_it_decodes_and_encodes_as_diffusers_does(case):
    errors = told_by("tests.backend.families.hunyuan.vae_tpu_run", case, devices=4)[case]
    assert len(errors) == 6 and max(errors) <= TOLERANCE
