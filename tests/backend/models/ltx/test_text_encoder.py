"""The states of all layers of Gemma 3 and Gemma 4, as LTX-2 uses them, equal transformers' classes, on one device and on eight."""

import pytest

from tests.many_devices import told_by

BOUND = 1e-5  # relative, float32: four layers of sums of up to 64 products, in another order


@pytest.mark.parametrize("devices", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_all_layers_states_are_transformers(devices):
    """The cases have padding on the left, windows shorter than the prompt, heads of two widths, keys as values, and layer
    factors.
    """
    found = told_by("tests.backend.models.ltx.gemma_run", devices=devices)
    assert len(found) == 4 and max(found.values()) <= BOUND, found
