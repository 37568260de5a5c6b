"""Compare the norms of tokens: the plain form with PyTorch, and the TPU's pass, in the interpreter, with the plain form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental.pallas import tpu as pltpu

from kernels.token_norm import layer_norm, rms_norm

EPS = 1e-6


def draw(length: int, width: int, offset: float = 0.0, dtype="bfloat16") -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return tokens [2, length, width] around `offset`, a scale and a shift."""
    keys = jax.random.split(jax.random.key(0), 3)
    tokens = (offset + 3 * jax.random.normal(keys[0], (2, length, width))).astype(dtype)
    return tokens, 1 + 0.2 * jax.random.normal(keys[1], (width,)), jax.random.normal(keys[2], (width,))


def test_the_plain_forms_are_pytorch_s():
    """The comparison is in float32. Sums in another order change 1e-5 of values up to 6."""
    tokens, scale, shift = draw(5, 96, offset=10.0, dtype=jnp.float32)
    theirs = [torch.from_numpy(np.array(array)) for array in (tokens, scale, shift)]
    of_layer = torch.nn.functional.layer_norm(theirs[0], (96,), *theirs[1:], eps=EPS)
    np.testing.assert_allclose(layer_norm(tokens, scale, shift, eps=EPS), of_layer, atol=1e-4)
    of_root = torch.nn.functional.rms_norm(theirs[0], (96,), theirs[1], eps=EPS)
    np.testing.assert_allclose(rms_norm(tokens, scale, eps=EPS), of_root, atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 100.0])  # far from 0, the mean square less the square of the mean would lose all digits
@pytest.mark.parametrize("length", [128, pytest.param(512, marks=pytest.mark.slow)])
def test_the_pass_is_the_plain_form(length, offset):
    """Each form rounds once to bfloat16. Sums in another order move the float32 values to neighbours at most, 2^-7 of each."""
    tokens, scale, shift = draw(length, 384, offset)
    for norm, vectors in ((layer_norm, (scale, shift)), (rms_norm, (scale,))):
        run = functools.partial(norm, tokens, *vectors, eps=EPS)
        with pltpu.force_tpu_interpret_mode():
            ours = run(use_pallas=True)
        np.testing.assert_allclose(ours.astype(jnp.float32), run().astype(jnp.float32), rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("length, width", [(100, 128), (128, 100)])
def test_lengths_and_widths_off_128_are_refused(length, width):
    tokens, scale, shift = draw(length, width)
    with pytest.raises(NotImplementedError, match="multiples of 128"):
        layer_norm(tokens, scale, shift, eps=EPS, use_pallas=True)
