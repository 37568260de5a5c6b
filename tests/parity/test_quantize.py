"""Quantized models stay near the same model in bfloat16, for each kind of Wan model. The tiny models have random weights."""

import jax
import numpy as np
import pytest

from backend.pipeline import load as load_module
from backend.pipeline.loaded import LoadedModel
from backend.schemas.request import GenerationRequest
from tests.parity.tiny_runs import latents_of

pytestmark = pytest.mark.demo_model

# A product of normal values has an error of about 40 dB in int8 and 32 in fp8. Guidance multiplies it, and layers and steps add it
# up: after 20 steps the demo model has 28.6 and 22.7 dB (docs/models.md).
LEAST_DECIBELS = {"int8": 20.0, "fp8": 12.0}
CASES = (("wan2.2-t2v", "int8"), ("wan2.2-t2v", "fp8"), ("wan2.1-vace", "int8"))


def load_in_bfloat16(request: GenerationRequest) -> LoadedModel:
    """Load the model of a tiny preset, whose dtype is float32, in bfloat16, with the request's `quantize`."""
    return load_module.load(request.resolved_preset.model_copy(update={"dtype": "bfloat16"}), None, lambda event: None)


def decibels(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the power of `exact` divided by the power of the error, in dB."""
    return float(10 * np.log10(np.square(exact).mean() / np.square(found - exact).mean()))


@pytest.mark.parametrize("family, quantize", CASES)
def test_the_error_of_a_random_model_is_small(family, quantize, tiny):
    request = tiny(family).request(steps=2, quantize=quantize)
    loaded, exact = load_in_bfloat16(request), load_in_bfloat16(request.with_changes(quantize="off"))
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(loaded.experts[-1].weights)}
    assert dtypes == {"float32", "bfloat16", "int8" if quantize == "int8" else "float8_e4m3fn"}
    error = decibels(latents_of(request, loaded), latents_of(request, exact))
    assert LEAST_DECIBELS[quantize] <= error < 80, "a model that is not quantized would be nearer"
