"""Sol-Attn against NumPy, and its identities."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.attention import SparseHeads, key_selection, reference, sol_attention
from kernels.attention.sol import mean_exact_blocks, most_exact_blocks
from kernels.qkv import LOG2_E, HeadBounds
from tests.kernels.sparse_reference import sol_attention as plain_sol

HEADS, WIDTH = 2, 128


def make_heads(length, num_keys=None, seed=1, scale=2.0):
    rng = np.random.default_rng(seed)
    query, key, value = (jnp.asarray(rng.standard_normal((1, length, HEADS, WIDTH)) * scale, jnp.float32) for _ in range(3))
    num_keys = num_keys or length
    return SparseHeads(query=query, key=key, value=value, num_keys=num_keys, num_queries=num_keys)


def real(heads):
    return [np.asarray(array)[:, : heads.num_keys] for array in (heads.query, heads.key, heads.value)]


def dense(heads):
    return reference.reference_attention(*map(jnp.asarray, real(heads)), scale=WIDTH**-0.5)


@pytest.mark.parametrize(
    ("length", "num_keys", "block_q", "tau"), [(640, 640, 64, 0.7), (640, 600, 64, 0.7), (777, 777, 128, 0.3), (70, 65, 64, 1.0)]
)
def test_sol_attn_equals_numpy(length, num_keys, block_q, tau):
    heads = make_heads(length, num_keys)
    expected, margins = plain_sol(*real(heads), tau, block_q, 64)
    assert np.abs(margins).min() > 1e-6, "no score is near the threshold"
    found, (exact, dropped) = sol_attention(heads, tau, block_q, 64, space=margins.shape[-1])
    np.testing.assert_allclose(found[:, :num_keys], expected, atol=1e-4)
    assert dropped == 0 and exact <= margins.size


def test_blocks_without_space_are_counted_and_approximated():
    heads = make_heads(640)
    expected, margins = plain_sol(*real(heads), -0.5, 64, 64, space=4)
    found, (exact, dropped) = sol_attention(heads, -0.5, 64, 64, space=4)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    near = np.abs(np.subtract.outer(np.arange(10), np.arange(10))) <= 1
    wanted = ((margins > 0) | near).sum(-1)
    assert exact == np.minimum(wanted, 4).sum() and dropped == np.maximum(wanted - 4, 0).sum() > 0


def test_with_a_very_low_threshold_sol_attn_is_dense_attention():
    heads = make_heads(400, 390)
    found, (_, dropped) = sol_attention(heads, -1e4)
    np.testing.assert_allclose(found[:, :390], dense(heads), atol=1e-4)
    assert dropped == 0 and most_exact_blocks(-1e4, 7) == 7


def test_the_approximation_of_blocks_with_equal_keys_is_exact():
    heads = make_heads(600)
    equal = np.repeat(np.asarray(heads.key)[:, ::64], 64, axis=1)[:, :600]
    heads = dataclasses.replace(heads, key=jnp.asarray(equal))
    found, (exact, _) = sol_attention(heads, 1e4, 64, 64)
    np.testing.assert_allclose(found, dense(heads), atol=1e-4)
    assert exact == HEADS * 28, "only the neighbours are exact"


def test_the_second_half_of_the_queries_gives_the_second_half_of_the_attention():
    heads = make_heads(768, 700)
    whole, counts = sol_attention(heads, 0.5)
    halves = [
        dataclasses.replace(heads, query=heads.query[:, start : start + 384], num_queries=heads.num_keys - start)
        for start in (0, 384)
    ]
    found = [sol_attention(half, 0.5, first_query=jnp.int32(start)) for half, start in zip(halves, (0, 384), strict=True)]
    np.testing.assert_allclose(np.concatenate([one for one, _ in found], 1)[:, :700], whole[:, :700], atol=1e-5)
    np.testing.assert_array_equal(sum(one for _, one in found), counts)


def test_the_arrays_that_the_tpu_passes_prepare_give_the_same_attention():
    heads, zeros = make_heads(512), jnp.zeros((1, HEADS))
    prepared = dataclasses.replace(
        heads,
        query=heads.query * (LOG2_E * WIDTH**-0.5),
        key=heads.key - heads.key.mean(1, keepdims=True),
        bounds=HeadBounds(query=zeros, key=zeros, value=zeros),
    )
    expected, counts = sol_attention(heads, 0.5)
    with pltpu.force_tpu_interpret_mode():
        found, own_counts = sol_attention(prepared, 0.5, implementation="gathered")
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_array_equal(own_counts, counts)


def test_the_mask_has_the_listed_scores():
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.standard_normal((1, 2, 40, 297)).round(1), jnp.float32)
    counts = jnp.asarray(rng.integers(0, 14, (1, 2, 40)))
    order = np.argsort(-np.asarray(scores), axis=-1, kind="stable")
    for options in ({}, {"use_pallas": True, "interpret": True}):
        _, mask = key_selection.largest(scores, 13, counts, returns_mask=True, **options)
        for index in np.ndindex(counts.shape):
            np.testing.assert_array_equal(np.flatnonzero(mask[index]), np.sort(order[index][: counts[index]]))


def test_the_lists_have_the_measured_mean_length_and_room_for_more():
    assert mean_exact_blocks(1.5, 1182) / 1182 == pytest.approx(0.15, abs=0.002), "measured by the authors' repository"
    for tau in (0.5, 1.0, 1.5, 2.0):
        assert mean_exact_blocks(tau, 1182) < most_exact_blocks(tau, 1182) <= 1182
