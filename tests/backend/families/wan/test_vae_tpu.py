"""The TPU's autoencoder in interpret mode against diffusers' own layers, frame by frame, on one device and on eight."""

import json
import subprocess
import sys

import pytest

from backend.families.wan import vae_tpu as tpu_autoencoder
from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.many_devices import environment

# Devices, height and width of latents; eight share out the height of 8,3, because it divides.
ALONE, UNEVEN, EVEN = "1,3,4", "8,5,8", "8,8,3"
TOLERANCE = 2e-5  # pixels in [-1, 1], float32: the same sums in another order, through some thirty convolutions


@pytest.mark.parametrize(
    ("kind", "cases"),
    [
        ("wan2.1", (ALONE, UNEVEN)),
        ("wan2.2", (UNEVEN, EVEN)),
        pytest.param("wan2.1", (EVEN,), marks=pytest.mark.slow),
        pytest.param("wan2.2", (ALONE,), marks=pytest.mark.slow),
    ],
)
def test_it_decodes_and_encodes_as_diffusers_layers_do(kind, cases):
    words = [sys.executable, "-W", "ignore", "-m", "tests.backend.families.wan.vae_tpu_run", kind, *cases]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment(8), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(cases) and all(len(errors) == 6 for errors in found.values())
    assert max(error for errors in found.values() for error in errors) <= TOLERANCE


def test_both_of_wans_are_served_and_what_is_built_otherwise_is_not():
    assert tpu_autoencoder.can_run(load_preset("wan2.1-t2v-14b-720p").network_configs()["vae"])
    assert tpu_autoencoder.can_run(load_preset("wan2.2-ti2v-5b-720p").network_configs()["vae"])
    assert not tpu_autoencoder.can_run(load_preset("wan-tiny").network_configs()["vae"])
