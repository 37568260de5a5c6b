"""Compare the TPU's autoencoder in interpret mode with diffusers' on whole clips, on one device and on four."""

import pytest

from tests.many_devices import told_by

# Devices, height and width of latents. Four devices split the height if it is divisible, possibly with one extra row. Otherwise
# they split the width with one extra column.
ALONE, DIVIDED, TURNED, PADDED = "1,3,2", "4,4,3", "4,7,3", "4,3,7"
TOLERANCE = 2e-5  # pixels in [-1, 1], float32: the same sums in another order, through some fifteen convolutions


@pytest.mark.parametrize("case", [TURNED, *(pytest.param(case, marks=pytest.mark.slow) for case in (ALONE, DIVIDED, PADDED))])
def test_it_decodes_and_encodes_as_diffusers_does(case):
    errors = told_by("tests.backend.models.hunyuan.vae_tpu_run", case, devices=4)[case]
    assert len(errors) == 6 and max(errors) <= TOLERANCE
