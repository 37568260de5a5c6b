"""The TPU's autoencoder in interpret mode against diffusers' own on whole clips, on one device and on four."""

import json
import subprocess
import sys

import pytest

from backend.settings import PROJECT_FOLDER
from tests.many_devices import environment

ALONE, SHARED = "1,3,2", "4,4,3"  # devices, height and width of latents; four share out the height, because it divides
TOLERANCE = 2e-5  # pixels in [-1, 1], float32: the same sums in another order, through some fifteen convolutions


@pytest.mark.parametrize("case", [SHARED, pytest.param(ALONE, marks=pytest.mark.slow)])
def test_it_decodes_and_encodes_as_diffusers_does(case):
    words = [sys.executable, "-W", "ignore", "-m", "tests.backend.families.hunyuan.vae_tpu_run", case]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment(4), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout.splitlines()[-1])[case]
    assert len(errors) == 6 and max(errors) <= TOLERANCE
