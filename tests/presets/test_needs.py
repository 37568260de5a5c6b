"""Check that the stored needs of models agree with their networks and with the documents.

`KEEP_NEEDS=1 .venv-test/bin/python -m pytest -m "" tests/presets/test_needs.py` computes the weights again and stores them.
Commit the file with the change that altered the weights.
"""

import json
import math
import os
import re

import jax
import pytest

from backend.pipeline.load import describe_model
from backend.runtime.program import compile_now
from backend.settings import PROJECT_FOLDER
from presets import Preset, list_presets
from presets.needs import NEEDS_FILE, find_needs

MODELS = {preset.model: preset for preset in reversed(list_presets())}
QUICK = ("embedded:wan-tiny", "Wan-AI/Wan2.2-TI2V-5B-Diffusers", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers")


def weights_of(preset: Preset) -> dict[str, int]:
    """Return the bytes of each network's weights at run time, from their shapes. Tied weights count once."""
    found = {}
    for network in describe_model(preset, jax.devices()[:1], compile_now).networks:
        described = network.described
        tied = [name for name in network.tied if isinstance(described, dict) and name in described][1:]
        leaves = jax.tree.leaves({name: leaf for name, leaf in described.items() if name not in tied} if tied else described)
        found[network.part] = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return found


@pytest.mark.parametrize("model", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in MODELS])
def test_the_weights_are_those_of_the_networks(model):
    weights = weights_of(MODELS[model])
    if os.environ.get("KEEP_NEEDS"):
        stored = json.loads(NEEDS_FILE.read_text("utf-8"))
        stored.setdefault(model, {})["weights"] = weights
        NEEDS_FILE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", "utf-8")
        return
    assert find_needs(model).weights == weights


def test_every_model_is_there_and_no_other():
    assert json.loads(NEEDS_FILE.read_text("utf-8")).keys() == MODELS.keys()


def rows() -> dict[tuple[str, str], tuple[float, float]]:
    """Return GiB per chip and seconds per step by preset and slice, from the tables of docs/performance.md."""
    found = {}
    for line in (PROJECT_FOLDER / "docs/performance.md").read_text("utf-8").splitlines():
        row = re.match(r"\| ([\w.-]+)[^|]*\| ([\w]+:[\dx]+)[^|]*\| ([\d.]+) of [^|]*\| \**([\d.]+)", line)
        if row:
            found[row[1], row[2]] = float(row[3]), float(row[4])
    return found


def test_the_slices_are_those_of_the_document():
    kept = {(one.preset, one.slice): (one.gib, one.step_seconds) for model in MODELS for one in find_needs(model).slices}
    assert kept == rows() and len(kept) > 10


def test_a_slices_preset_uses_the_model():
    for model in MODELS:
        names = {preset.name for preset in list_presets() if preset.model == model}
        assert {one.preset for one in find_needs(model).slices} <= names
