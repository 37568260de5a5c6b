"""Compare PyTorch's attention inside our programs with the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backend.runtime import cpu_attention
from backend.runtime.cpu_attention import attention
from kernels.attention import AttentionOptions, Call, TpuOptions
from kernels.attention.reference import reference_attention

SCALE = 128**-0.5
EXPONENTIAL = 1.2e-6  # PyTorch's exponential is exact to 20 units in the last place of 24 bits


def torch_attention(*arrays: jax.Array, num_keys: int | None = None) -> jax.Array:
    return attention(*arrays, options=AttentionOptions(implementation="torch_cpu", num_keys=num_keys))


def random_arrays(length_q: int, length_kv: int, dtype: str = "float32") -> list[jax.Array]:
    """Return query, key and value [1, S, 2, 128] from a normal distribution."""
    keys = jax.random.split(jax.random.key(length_q * 1000 + length_kv), 3)
    return [
        jax.random.normal(key, (1, length, 2, 128), dtype)
        for key, length in zip(keys, (length_q, length_kv, length_kv), strict=True)
    ]


@pytest.mark.parametrize("length_q, length_kv", [(1, 1), (1, 127), (127, 1), (257, 257), (100, 333)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_equals_the_reference(length_q, length_kv, has_bias):
    arrays = random_arrays(length_q, length_kv)
    bias = jax.random.normal(jax.random.key(9), (1, 1, 1, length_kv)) if has_bias else None
    expected = reference_attention(*arrays, bias, scale=SCALE)
    # weights and their sum have an exponential's error, for outputs up to 4.5; sums in another order add less
    np.testing.assert_allclose(torch_attention(*arrays, bias), expected, atol=2 * EXPONENTIAL * 4.5)


def test_in_bfloat16_it_stays_within_its_rounding():
    arrays = random_arrays(257, 300, jnp.bfloat16)
    ours = torch_attention(*arrays)
    assert ours.dtype == jnp.bfloat16
    exact = reference_attention(*(array.astype(jnp.float32) for array in arrays), scale=SCALE)
    # bfloat16 keeps 8 bits: scores of about 3 move by 0.012, so weights by 1.2 %, of outputs that stay below 1
    np.testing.assert_allclose(ours.astype(jnp.float32), exact, atol=0.02)


def test_it_sees_no_padding():
    query, key, value = random_arrays(40, 100)
    ours = torch_attention(query, key, value, num_keys=70)
    np.testing.assert_array_equal(ours, torch_attention(query, key[:, :70], value[:, :70]))


def calls_pytorch(arrays: list[jax.Array], platform: str) -> bool:
    """Return whether the program for this attention and platform calls PyTorch."""
    options = AttentionOptions(tpu=TpuOptions(layout="columns"))
    traced = jax.jit(lambda *arrays: attention(*arrays, options=options)).trace(*arrays)
    return "torch_cpu_attention" in traced.lower(lowering_platforms=(platform,)).as_text()


def test_programs_of_the_cpu_call_it_and_others_do_not():
    arrays = random_arrays(100, 100)
    assert calls_pytorch(arrays, "cpu")
    assert not calls_pytorch(arrays, "cuda")
    assert not calls_pytorch([array.astype(jnp.bfloat16) for array in arrays], "tpu")


def test_where_the_platform_is_known_the_program_has_no_choice_to_make():
    arrays = random_arrays(64, 64)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("x",))
    with jax.set_mesh(mesh):
        text = jax.jit(lambda *arrays: attention(*arrays, options=AttentionOptions())).lower(*arrays).as_text()
    assert "torch_cpu_attention" in text and "stablehlo.case" not in text


def test_one_of_several_devices_and_other_dtypes_have_the_kernels_own():
    def refusal(*arrays):
        return cpu_attention.TORCH_CPU.refuse(Call(*arrays, None, AttentionOptions()))

    query, key, value = random_arrays(100, 100)
    assert refusal(query, key, value) is None
    assert "not bfloat16, float32" in refusal(query.astype(jnp.bfloat16), key, value)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((8,), ("sp",))):
        assert "one CPU device" in refusal(query, key, value)
