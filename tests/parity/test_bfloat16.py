"""The real presets run in bfloat16. Every family runs in bfloat16 too, near its own float32 result."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from backend.pipeline import load as load_module
from tests.parity.tiny_runs import latents_of

pytestmark = [pytest.mark.slow, pytest.mark.demo_model]

LEAST_CORRELATION = 0.99  # bfloat16 has 8 bits: a few parts in a thousand per layer, through two steps; measured 0.998 and up
GIVEN = {"wan2.1-i2v": ("image",), "wan2.1-flf2v": ("image", "last_image"), "wan2.2-i2v": ("image", "last_image"),
         "wan2.2-ti2v": ("image",), "wan2.2-t2v": ()}  # fmt: skip


@pytest.mark.parametrize("family", GIVEN)
def test_bfloat16_is_near_float32(family, tiny, pictures):
    made = tiny(family)
    request = made.request(steps=2, **{name: pictures[name] for name in GIVEN[family]})
    exact = latents_of(request, made.loaded)
    half = made.preset.model_copy(update={"dtype": "bfloat16"})
    loaded = load_module.load(half, None, lambda event: None)
    ours = latents_of(request, loaded)
    assert np.corrcoef(ours.ravel(), exact.ravel())[0, 1] >= LEAST_CORRELATION
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(loaded.experts[0].weights)}
    assert dtypes == {"bfloat16", "float32"}
