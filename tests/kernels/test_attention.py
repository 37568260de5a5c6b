"""Compare every attention implementation with the formula, at lengths that are no multiple of any block."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import AttentionOptions, KvLengths, attention
from kernels.attention.api import SMALL_SCORES
from kernels.attention.blocked import blocked_attention
from kernels.attention.reference import reference_attention

SCALE = 128**-0.5


def random_arrays(length_q: int, length_kv: int, heads: int = 2, width: int = 128, dtype: str = "float32", norm: float = 1.0):
    keys = jax.random.split(jax.random.key(length_q * 1000 + length_kv), 3)
    lengths = (length_q, length_kv, length_kv)
    return [norm * jax.random.normal(key, (1, length, heads, width), dtype) for key, length in zip(keys, lengths, strict=True)]


@pytest.mark.parametrize("length_q, length_kv", [(1, 1), (1, 127), (127, 1), (257, 257), (100, 333), (64, 64)])
def test_blocked_equals_the_reference(length_q, length_kv):
    arrays = random_arrays(length_q, length_kv)
    ours = blocked_attention(*arrays, scale=SCALE, block_q=64, block_kv=64)
    # float32 sums in another order: a few units in the last place of values around 1
    np.testing.assert_allclose(ours, reference_attention(*arrays, scale=SCALE), atol=2e-6)


def test_blocked_survives_scores_that_would_overflow():
    arrays = random_arrays(130, 130, norm=30.0)
    ours = blocked_attention(*arrays, scale=SCALE, block_q=64, block_kv=64)
    assert np.isfinite(ours).all()
    # Scores reach 30 * 30 * sqrt(128) * 3 = 3e4, where neighbouring float32 values differ by 2e-3. Weights differ by the same
    # relative amount, and outputs, which reach 90, by at most 0.1.
    np.testing.assert_allclose(ours, reference_attention(*arrays, scale=SCALE), atol=0.1)


def test_blocked_in_bfloat16_stays_within_its_rounding():
    arrays = random_arrays(257, 300, dtype=jnp.bfloat16)
    ours = blocked_attention(*arrays, scale=SCALE, block_q=64, block_kv=64).astype(jnp.float32)
    exact = reference_attention(*(array.astype(jnp.float32) for array in arrays), scale=SCALE)
    assert ours.dtype == jnp.float32
    # bfloat16 keeps 8 bits: scores of about 3 move by 0.012, so weights by 1.2 %, of outputs that stay below 1
    np.testing.assert_allclose(ours, exact, atol=0.02)


def test_reference_equals_jax_own_attention():
    arrays = random_arrays(50, 70)
    np.testing.assert_allclose(
        reference_attention(*arrays, scale=SCALE), jax.nn.dot_product_attention(*arrays, scale=SCALE), atol=2e-6
    )


def test_padding_bias_stands_for_many_equal_keys():
    query, key, value = random_arrays(40, 8)
    repeated_key, repeated_value = (jnp.concatenate([array, jnp.repeat(array[:, -1:], 92, 1)], 1) for array in (key, value))
    bias = jnp.zeros((1, 1, 1, 8)).at[..., -1].set(jnp.log(93.0))
    np.testing.assert_allclose(attention(query, key, value, bias), attention(query, repeated_key, repeated_value), atol=2e-6)


def test_long_sequences_are_blocked_and_short_ones_are_not():
    long = random_arrays(2100, 2100, heads=1)
    assert 2100**2 > SMALL_SCORES
    np.testing.assert_array_equal(attention(*long), attention(*long, options=AttentionOptions(implementation="blocked")))
    short = random_arrays(100, 100)
    np.testing.assert_array_equal(attention(*short), attention(*short, options=AttentionOptions(implementation="reference")))


def test_blocked_refuses_a_bias():
    arrays = random_arrays(10, 10)
    with pytest.raises(NotImplementedError, match="takes no bias"):
        attention(*arrays, jnp.zeros((1, 1, 1, 10)), AttentionOptions(implementation="blocked"))


WINDOWS = [(130, 130, (20, 5)), (200, 90, (30, 0)), (90, 300, (0, 100))]


@pytest.mark.parametrize("length_q, length_kv, window", WINDOWS)
def test_blocked_equals_the_reference_within_a_window(length_q, length_kv, window):
    arrays = random_arrays(length_q, length_kv)
    ours = blocked_attention(*arrays, scale=SCALE, window=window, block_q=64, block_kv=64)
    np.testing.assert_allclose(ours, reference_attention(*arrays, scale=SCALE, window=window), atol=2e-6)


@pytest.mark.parametrize("length_q, length_kv, window", WINDOWS)
def test_the_reference_s_window_is_jax_s_own_and_yields_0_where_nothing_is_seen(length_q, length_kv, window):
    arrays = random_arrays(length_q, length_kv)
    ours = attention(*arrays, options=AttentionOptions(window_size=window, implementation="reference"))
    sees_a_key = np.arange(length_q) - window[0] < length_kv
    theirs = jax.nn.dot_product_attention(*arrays, scale=SCALE, local_window_size=window)
    np.testing.assert_allclose(ours[:, sees_a_key], theirs[:, sees_a_key], atol=2e-6)
    np.testing.assert_array_equal(ours[:, ~sees_a_key], 0)


@pytest.mark.parametrize("implementation", [None, "reference", "blocked"])
def test_one_layer_of_several_is_attended_to(implementation):
    query, key, value = random_arrays(20, 40)
    stacked = [jnp.full((3, *array.shape), jnp.nan, array.dtype).at[2].set(array) for array in (key, value)]
    options = AttentionOptions(implementation=implementation)
    ours = attention(query, *stacked, options=dataclasses.replace(options, layer=jnp.int32(2)))
    np.testing.assert_array_equal(ours, attention(query, key, value, options=options))


@pytest.mark.parametrize("implementation", ["reference", "blocked"])
def test_each_sample_sees_as_many_keys_as_it_is_told(implementation):
    keys = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(one, (3, length, 2, 16)) for one, length in zip(keys, (20, 1100, 1100), strict=True))
    kv_lengths = KvLengths(values=jnp.array([1, 700, 1100]))
    ours = attention(query, key, value, options=AttentionOptions(kv_lengths=kv_lengths, implementation=implementation))
    for sample, count in enumerate(kv_lengths.values.tolist()):
        sample_arrays = query[sample:][:1], key[sample:, :count][:1], value[sample:, :count][:1]
        one = attention(*sample_arrays, options=AttentionOptions(implementation="reference"))
        np.testing.assert_allclose(ours[sample:][:1], one, atol=1e-5)  # float32 sums in another order
