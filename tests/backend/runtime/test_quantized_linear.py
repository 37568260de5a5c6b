"""Quantized linear layers equal a NumPy reference, in both number formats, on a CPU's path and on the path of 8-bit units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from backend.runtime import quantized_linear
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.quantized_linear import DTYPES
from backend.runtime.torch_modules import call_module
from backend.weights.read import quantize_matrix
from kernels.token_quantize import LARGEST

ROWS, DEPTH, COLUMNS = 7, 320, 515
FORMATS = ("int8", "fp8")


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def layout() -> Layout:
    return Layout.create(MeshPlan(), jax.devices()[:1])


def multiply_quantized(*arguments: object) -> jax.Array:
    return quantized_linear.multiply_quantized(layout(), *arguments)


def tokens() -> np.ndarray:
    """Return tokens [1, ROWS, DEPTH] of very different sizes. One token is zero."""
    return (normal(0, 1, ROWS, DEPTH) * (10.0 ** np.arange(-3, ROWS - 3))[:, None] * (np.arange(ROWS) != 2)[:, None]).astype(
        np.float32
    )


def quantize_rows(values: np.ndarray, format: str) -> tuple[np.ndarray, np.ndarray]:
    """Quantize each row. Return the 8-bit values and the scales [rows, 1] in float32."""
    dtype = DTYPES[format]
    peak = np.maximum(np.abs(values).max(-1, keepdims=True), np.float32(1e-30))
    scaled = values * (np.float32(LARGEST[dtype]) / peak)
    return (np.rint(scaled) if format == "int8" else scaled).astype(dtype), peak / np.float32(LARGEST[dtype])


@pytest.mark.parametrize("format", FORMATS)
def test_the_weights_are_quantized_for_each_output_channel(format):
    weight = normal(1, COLUMNS, DEPTH) * np.linspace(0.01, 3, COLUMNS, dtype=np.float32)[:, None]
    weight[3] = 0
    expected, scale = quantize_rows(weight, format)
    found, found_scale = quantize_matrix(torch.from_numpy(weight), DTYPES[format])
    np.testing.assert_array_equal(found.float().numpy(), expected.astype(np.float32))
    np.testing.assert_array_equal(found_scale.numpy()[4:], scale[4:, 0])
    assert np.abs(found[0].float().numpy()).max() == LARGEST[DTYPES[format]]


def test_halves_are_rounded_to_even():
    halves = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    assert quantize_matrix(halves, DTYPES["int8"])[0].tolist() == [[127, 0, 2, 2, 0, -2]]
    weight, one = jnp.eye(6, dtype=jnp.int8), jnp.ones(6)
    found = multiply_quantized(jnp.asarray(halves.numpy())[None], weight, one, None)
    np.testing.assert_array_equal(found, [[[127, 0, 2, 2, 0, -2]]])


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_the_product_equals_the_reference(format, has_bias, units, monkeypatch):
    if units:  # the path of devices with 8-bit units, which XLA also runs on a CPU
        monkeypatch.setattr(quantized_linear, "multiply_on_cpu", quantized_linear.multiply_8_bit)
    value, bias = tokens(), normal(2, COLUMNS) if has_bias else None
    weight, scale = quantize_rows(normal(1, COLUMNS, DEPTH), format)
    own, own_scale = quantize_rows(value, format)
    sums = own.astype(np.float64) @ weight.astype(np.float64).T
    expected = sums * own_scale * scale[:, 0] + (0 if bias is None else bias)
    found = multiply_quantized(jnp.asarray(value), jnp.asarray(weight), jnp.asarray(scale[:, 0]), bias)
    # float32: sums of 320 products, then two products and a sum, of 2 ** -24 each, relative to the sum of all absolute products
    size = np.abs(own.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T * own_scale * scale[:, 0]
    assert (np.abs(found - expected) <= DEPTH**0.5 * 2**-24 * size + 4 * 2**-24 * np.abs(expected) + 1e-30).all()
    assert found.dtype == jnp.float32


def test_a_bfloat16_result_is_rounded_once():
    value = jnp.asarray(tokens(), jnp.bfloat16)
    weight, scale = map(jnp.asarray, quantize_rows(normal(1, COLUMNS, DEPTH), "int8"))
    bias = jnp.asarray(normal(2, COLUMNS), jnp.bfloat16)
    exact = multiply_quantized(value.astype(jnp.float32), weight, scale[:, 0], bias)
    found = multiply_quantized(value, weight, scale[:, 0], bias)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("format", FORMATS)
def test_a_quantized_module_takes_the_place_of_a_linear_layer(format):
    model = torch.nn.Sequential(torch.nn.Linear(DEPTH, COLUMNS), torch.nn.Linear(COLUMNS, 3))
    dtypes = quantized_linear.quantize_linears(model, lambda name: name == "0", format, layout())
    assert dtypes == {"0.weight": DTYPES[format], "0.weight_scale": jnp.float32} and isinstance(model[1], torch.nn.Linear)
    weight, scale = quantize_rows(normal(1, COLUMNS, DEPTH), format)
    bias = normal(2, COLUMNS)
    parameters = {"weight": jnp.asarray(weight), "weight_scale": jnp.asarray(scale[:, 0]), "bias": jnp.asarray(bias)}

    def run(module, value):
        return module(value)

    found = jax.jit(lambda value: call_module(model[0], parameters, run, value))(jnp.asarray(tokens()))
    expected = multiply_quantized(jnp.asarray(tokens()), *map(jnp.asarray, (weight, scale[:, 0], bias)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_program_of_a_tpu_multiplies_8_bits():
    weight = jnp.ones((COLUMNS, DEPTH), jnp.int8)
    traced = jax.jit(multiply_quantized).trace(jnp.asarray(tokens()), weight, jnp.ones(COLUMNS), None)
    product = f"tensor<{COLUMNS}x{DEPTH}xi8>) -> tensor<1x{ROWS}x{COLUMNS}xi32>"
    assert product in traced.lower(lowering_platforms=("tpu",)).as_text()
    assert product not in traced.lower(lowering_platforms=("cpu",)).as_text()
