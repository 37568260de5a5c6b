"""The TPU's pass that quantizes tokens equals the plain form, in the interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.token_quantize import can_run_pass, quantize_tokens

INT8, FP8 = "int8", "float8_e4m3fn"


def test_the_pass_is_the_plain_form():
    """Compare exactly: both forms multiply the same float32 values by the same factors."""
    tokens = jax.random.normal(jax.random.key(0), (2, 128, 384)) * 10.0 ** jnp.arange(-3.0, 125.0)[None, :, None].clip(max=3)
    tokens = tokens.at[1, 5].set(0).astype(jnp.bfloat16)
    with pltpu.force_tpu_interpret_mode():
        ours = quantize_tokens(tokens, jnp.dtype(INT8), use_pallas=True)
    for found, expected in zip(ours, quantize_tokens(tokens, jnp.dtype(INT8)), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert not ours[0][1, 5].any() and int(jnp.abs(ours[0]).max()) == 127


@pytest.mark.parametrize("shape, dtype", [((1, 100, 128), INT8), ((1, 128, 100), INT8), ((128, 128), INT8), ((1, 128, 128), FP8)])
def test_other_shapes_and_formats_are_refused(shape, dtype):
    assert not can_run_pass(shape, jnp.dtype(dtype))
    with pytest.raises(NotImplementedError, match="multiples of 128"):
        quantize_tokens(jnp.zeros(shape, jnp.bfloat16), jnp.dtype(dtype), use_pallas=True)
