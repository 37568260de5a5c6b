"""VSA against NumPy, with tiles of few tokens, and its identities."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.attention import SparseHeads, add_gated_tiles, reference, vsa_attention
from kernels.attention.vsa import num_kept_tiles
from kernels.qkv import LOG2_E, HeadBounds
from tests.kernels.sparse_reference import vsa_attention as plain_vsa

HEADS, WIDTH, SIZE = 2, 128, 64


def make_case(counts, extra=0, dtype="float32"):
    """Return heads in tiles with these numbers of tokens, then `extra` places of padding, and a gate. All padding is large."""
    rng = np.random.default_rng(len(counts))
    length = len(counts) * SIZE + extra
    is_token = np.zeros(length, bool)
    for tile, count in enumerate(counts):
        is_token[tile * SIZE : tile * SIZE + count] = True
    arrays = [rng.standard_normal((1, length, HEADS, WIDTH)) for _ in range(4)]
    query, key, value, gate = (jnp.asarray(np.where(is_token[:, None, None], one, 9.0), dtype) for one in arrays)
    heads = SparseHeads(query=query, key=key, value=value, num_keys=len(counts) * SIZE, num_queries=length)
    return heads, gate, is_token


def attend(heads, gate, keep, counts, **options):
    fine, coarse = vsa_attention(heads, keep, SIZE, jnp.asarray(counts, jnp.int32), **options)
    flat = [array.reshape(*array.shape[:2], -1) for array in (fine, coarse, gate)]
    return np.asarray(add_gated_tiles(*flat)).reshape(fine.shape)


@pytest.mark.parametrize(("counts", "keep"), [((64, 64, 64, 64), 0.5), ((64, 16, 64, 8, 1, 64), 0.3), ((7,), 0.1)])
def test_vsa_equals_numpy_and_padding_does_not_count(counts, keep):
    heads, gate, is_token = make_case(counts, extra=128)
    kept = num_kept_tiles(keep, len(counts))
    whole = len(counts) * SIZE
    arrays = [np.asarray(array)[:, :whole] for array in (heads.query, heads.key, heads.value, gate)]
    expected, scores = plain_vsa(*arrays, counts, SIZE, kept)
    ordered = np.sort(scores, axis=-1)[..., ::-1]
    assert kept == len(counts) or (ordered[..., kept - 1] - ordered[..., kept]).min() > 1e-5, "no score is near the limit"
    found = attend(heads, gate, keep, counts)
    np.testing.assert_allclose(found[:, :whole][:, is_token[:whole]], expected[:, is_token[:whole]], atol=3e-5)
    assert np.isfinite(found).all()


def test_the_second_half_of_the_queries_gives_the_second_half_of_the_attention():
    counts = (64, 64, 32, 64, 64, 10)
    heads, gate, is_token = make_case(counts, extra=128)
    whole = attend(heads, gate, 0.5, counts)
    second = SparseHeads(query=heads.query[:, 256:], key=heads.key, value=heads.value, num_keys=heads.num_keys, num_queries=0)
    found = attend(second, gate[:, 256:], 0.5, counts, first_tile=jnp.int32(4))
    np.testing.assert_allclose(found[:, is_token[256:]], whole[:, 256:][:, is_token[256:]], atol=1e-5)


def test_with_gate_zero_and_all_tiles_vsa_is_dense_attention():
    counts = (64, 20, 64, 3)
    heads, gate, is_token = make_case(counts)
    query, key, value = (np.asarray(array)[:, is_token] for array in (heads.query, heads.key, heads.value))
    dense = reference.reference_attention(*map(jnp.asarray, (query, key, value)), scale=WIDTH**-0.5)
    np.testing.assert_allclose(attend(heads, gate * 0, 1.0, counts)[:, is_token], dense, atol=1e-5)


def test_the_arrays_that_the_tpu_passes_prepare_give_the_same_attention():
    """The passes scale the query and subtract the mean key. The selection then runs as a TPU kernel, here in the interpreter."""
    counts = (64, 16, 64, 8)
    heads, gate, is_token = make_case(counts)
    mean, zeros = heads.key.mean(1, keepdims=True), jnp.zeros((1, HEADS))
    prepared = dataclasses.replace(
        heads,
        query=heads.query * (LOG2_E * WIDTH**-0.5),
        key=heads.key - mean,
        bounds=HeadBounds(query=zeros, key=zeros, value=zeros),
    )
    with pltpu.force_tpu_interpret_mode():
        found = attend(prepared, gate, 0.5, counts, implementation="gathered")
    np.testing.assert_allclose(found[:, is_token], attend(heads, gate, 0.5, counts)[:, is_token], atol=1e-4)


@pytest.mark.parametrize(("keep", "tiles", "kept"), [(0.1, 624, 63), (0.2, 624, 125), (0.1, 1440, 144), (0.1, 3, 1), (1.0, 7, 7)])
def test_the_kept_share_is_rounded_up_as_published(keep, tiles, kept):
    assert num_kept_tiles(keep, tiles) == kept
