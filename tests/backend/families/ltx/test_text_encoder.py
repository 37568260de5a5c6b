"""Gemma 3 and Gemma 4 as LTX-2 reads them, all layers' states, are transformers' classes, on one device and on eight."""

import json
import subprocess
import sys

import pytest

from backend.settings import PROJECT_FOLDER
from tests.many_devices import environment

BOUND = 1e-5  # relative, float32: four layers of sums of up to 64 products, in another order


@pytest.mark.parametrize("devices", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_all_layers_states_are_transformers(devices):
    """Padding on the left, windows shorter than the prompt, heads of two widths, keys as values, factors of layers."""
    words = [sys.executable, "-W", "ignore", "-m", "tests.backend.families.ltx.gemma_run"]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment(devices), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 4 and max(found.values()) <= BOUND, found
