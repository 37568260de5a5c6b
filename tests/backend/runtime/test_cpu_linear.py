"""Compare large products on the CPU with float64, and check which products PyTorch computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from backend.runtime import cpu_linear
from backend.runtime import torch_modules as torchax_setup

needs_amx, needs_mkl = pytest.mark.usefixtures("amx"), pytest.mark.usefixtures("mkl")


@pytest.fixture
def amx() -> None:
    """Skip the test on a processor without AMX units."""
    if not torch.cpu.get_capabilities().get("amx_bf16", False):
        pytest.skip("this processor has no AMX units")


@pytest.fixture
def mkl() -> None:
    """Skip the test where PyTorch was built without MKL."""
    if cpu_linear._multiply_bfloat16() is None:
        pytest.skip("this build of PyTorch has no MKL")


def factors(rows: int, depth: int, columns: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Normal values [2, rows / 2, depth] and weights [columns, depth]."""
    value, weight = (
        jax.random.normal(jax.random.key(seed), shape) for seed, shape in ((0, (2, rows // 2, depth)), (1, (columns, depth)))
    )
    return value.astype(dtype), weight.astype(dtype)


def exact(value: jax.Array, weight: jax.Array) -> np.ndarray:
    return np.asarray(value, np.float64) @ np.asarray(weight, np.float64).T


@needs_mkl
@pytest.mark.parametrize("rows, depth, columns", [(1024, 1024, 1024), (1030, 257, 1111), (2, 3, 5)])
def test_three_bfloat16_products_are_nearly_a_float32_one(rows, depth, columns):
    value, weight = factors(rows, depth, columns, "float32")
    product = jax.jit(cpu_linear.linear)(value, weight)
    assert product.dtype == jnp.float32
    # The omitted product (low times low) and each rounded low part are at most 2 ** -16 of a product, 0.2 of that in root
    # mean square. There are three such errors for each of the `depth` products, with random signs. Six standard deviations
    # cover a million results.
    np.testing.assert_allclose(product, exact(value, weight), rtol=0, atol=6 * 3**0.5 * 0.2 * 2**-16 * depth**0.5)
    one_product = exact(value.astype(jnp.bfloat16), weight.astype(jnp.bfloat16))
    assert np.abs(product - exact(value, weight)).max() < np.abs(one_product - exact(value, weight)).max() / 50


@needs_mkl
def test_it_is_the_same_in_a_loop_over_layers_kept_in_columns():
    value, weight = factors(16, 96, 96, "float32")
    layers = jnp.stack([weight.T, weight.T * 2])

    @jax.jit
    def run(value, layers):
        return jax.lax.scan(lambda carry, layer: (cpu_linear.linear(carry, layer.T), None), value, layers)[0]

    expected = exact(exact(value, weight), 2 * weight)
    np.testing.assert_allclose(run(value, layers), expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("has_bias", [False, True])
def test_in_bfloat16_it_rounds_once(has_bias):
    value, weight = factors(1024, 256, 512, "bfloat16")
    bias = 100 * jax.random.normal(jax.random.key(2), (512,), jnp.bfloat16) if has_bias else None
    product = jax.jit(cpu_linear.linear)(value, weight, bias)
    assert product.dtype == jnp.bfloat16
    expected = exact(value, weight) + (0 if bias is None else np.asarray(bias, np.float64))
    # half a unit of bfloat16's last place, 2 ** -8 of the value, and the error of float32 sums of 256 products
    np.testing.assert_allclose(np.asarray(product, np.float64), expected, rtol=2**-8, atol=1e-4)


@needs_amx
@needs_mkl
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_serves_what_the_models_have(dtype):
    assert cpu_linear.is_supported(*factors(4680, 1536, 8960, dtype))


@needs_amx
@needs_mkl
def test_it_leaves_to_xla_what_xla_does_as_well():
    value, weight = factors(1024, 1024, 1024, "float32")
    assert cpu_linear.is_supported(value, weight)
    assert not cpu_linear.is_supported(value[:, 1:], weight)
    assert not cpu_linear.is_supported(value, weight[:512])
    assert not cpu_linear.is_supported(value, weight.astype(jnp.bfloat16))


def test_without_amx_it_serves_nothing(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not cpu_linear.is_supported(*factors(1024, 1024, 1024, "float32"))


@needs_amx
@needs_mkl
def test_the_layers_of_the_models_call_it_in_programs_of_the_cpu_alone():
    value, weight = factors(1024, 1024, 1024, "float32")
    traced = jax.jit(torchax_setup._linear).trace(value, weight)
    assert "mkl_sum" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "mkl_sum" not in traced.lower(lowering_platforms=("tpu",)).as_text()
