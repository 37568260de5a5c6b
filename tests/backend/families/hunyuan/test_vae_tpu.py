"""The TPU's autoencoder in interpret mode against diffusers' own on whole clips, on one device and on four."""

import json
import subprocess
import sys

from backend.settings import PROJECT_FOLDER
from tests.many_devices import environment

CASES = ("1,3,2", "4,4,3")  # devices, height and width of latents; four share out the height, because it divides
TOLERANCE = 2e-5  # pixels in [-1, 1], float32: the same sums in another order, through some fifteen convolutions


def test_it_decodes_and_encodes_as_diffusers_does():
    words = [sys.executable, "-W", "ignore", "-m", "tests.backend.families.hunyuan.vae_tpu_run", *CASES]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment(4), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(CASES) and all(len(errors) == 6 for errors in found.values())
    assert max(error for errors in found.values() for error in errors) <= TOLERANCE
