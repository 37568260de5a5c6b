"""Compare the TPU's autoencoder in interpret mode with diffusers' layers, frame by frame, on one device and on eight."""

import pytest

from backend.models.wan import vae_tpu as tpu_autoencoder
from presets import load_preset
from tests.many_devices import asked, told_by

# Devices, height and width of latents. Eight devices split the height of 8,3 because it is divisible.
ALONE, UNEVEN, EVEN = "1,3,4", "8,5,8", "8,8,3"
CASES = (f"wan2.1,decode,{UNEVEN}", f"wan2.2,encode,{EVEN}")
"""Each kind, each way, and each division of the latents occurs, except one chip alone."""
MORE_CASES = (
    f"wan2.1,decode,{ALONE}",
    f"wan2.2,decode,{UNEVEN}",
    f"wan2.2,encode,{ALONE}",
    f"wan2.1,encode,{UNEVEN}",
    f"wan2.1,decode,{EVEN}",
    f"wan2.2,decode,{ALONE}",
    f"wan2.1,encode,{ALONE}",
    f"wan2.2,encode,{UNEVEN}",
    f"wan2.2,decode,{EVEN}",
    f"wan2.1,encode,{EVEN}",
)
TOLERANCE = 2e-5  # pixels in [-1, 1], float32: the same sums in another order, through some thirty convolutions


@pytest.fixture(scope="module")
def results(request) -> dict[str, list[float]]:
    """Return the results of all cases that this test run selects."""
    return told_by("tests.backend.models.wan.vae_tpu_run", *asked(request, "case"))


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_CASES)])
def test_it_decodes_and_encodes_as_diffusers_layers_do(results, case):
    assert len(results[case]) == 3 and max(results[case]) <= TOLERANCE


def test_both_of_wans_are_served_and_what_is_built_otherwise_is_not():
    assert tpu_autoencoder.can_run(load_preset("wan2.1-t2v-14b-720p").network_configs()["vae"])
    assert tpu_autoencoder.can_run(load_preset("wan2.2-ti2v-5b-720p").network_configs()["vae"])
    assert not tpu_autoencoder.can_run(load_preset("wan-tiny").network_configs()["vae"])
