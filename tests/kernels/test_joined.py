"""Compare attentions to two sets of keys, joined by their log-sums, with one attention with a mask over all keys."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.attention import AttentionOptions, attention_with_lse, join_attentions
from kernels.attention.block_sizes import BlockSizes
from kernels.attention.pallas_tpu import KernelOptions, tpu_attention
from kernels.attention.reference import reference_attention

FRAMES, PLACES = 3, 40
SCALE = math.log(2) / 8  # log2(e) * scale is 2 ** -3, so that folding it into the query rounds nothing


def sizes() -> BlockSizes:
    return BlockSizes(128, 128, 128, 128)


def arrays_of(norm=1.0, dtype="float32", heads=2):
    """Return the tokens of a picture and of `FRAMES` frames with their keys and values, then the keys and values of a clip with
    as many frames.
    """
    keys = jax.random.split(jax.random.key(3), 5)
    lengths = [(FRAMES + 1) * PLACES] * 3 + [FRAMES * PLACES] * 2
    norms = (norm, norm, 1.0, norm, 1.0)
    return [
        (size * jax.random.normal(key, (1, length, heads, 128))).astype(dtype)
        for key, length, size in zip(keys, lengths, norms, strict=True)
    ]


def masked(query, key, value, clip_key, clip_value):
    """Compute one attention to all keys. A frame sees only the clip's keys of the same frame, and the picture's tokens see no
    keys of the clip.
    """
    frame = jnp.arange(query.shape[1]) // PLACES
    hidden = frame[:, None] != jnp.arange(clip_key.shape[1]) // PLACES + 1
    bias = jnp.concatenate([jnp.zeros((len(frame), key.shape[1])), jnp.where(hidden, -jnp.inf, 0.0)], axis=1)
    keys, values = (jnp.concatenate(pair, axis=1) for pair in ((key, clip_key), (value, clip_value)))
    return reference_attention(query, keys, values, bias[None, None], scale=SCALE)


def by_frames(array):
    return array.reshape(FRAMES, PLACES, *array.shape[2:])


def in_two(attend, query, key, value, clip_key, clip_value):
    """Compute the same as two joined attentions. `attend` returns the attention's output and the log-sums."""
    whole = attend(query, key, value)
    beside = attend(by_frames(query[:, PLACES:]), by_frames(clip_key), by_frames(clip_value))
    return join_attentions(whole, tuple(array.reshape(1, FRAMES * PLACES, *array.shape[2:]) for array in beside), before=PLACES)


@pytest.mark.parametrize("implementation", ["reference", "blocked"])
@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_two_joined_attentions_are_the_masked_one(implementation, norm):
    arrays = arrays_of(norm)

    def attend(*arrays):
        return attention_with_lse(*arrays, options=AttentionOptions(scale=SCALE, implementation=implementation))

    np.testing.assert_allclose(in_two(attend, *arrays), masked(*arrays), atol=1e-5)


@pytest.mark.parametrize("norm, uses_online_softmax", [(1.0, False), (6.0, True)])
@pytest.mark.parametrize("layout", ["columns", "heads"])
def test_the_tpu_kernel_gives_the_same(norm, uses_online_softmax, layout):
    """The log-sums of the kernel are float32. Its attention is rounded to bfloat16 four times: weights and result, twice."""
    arrays = arrays_of(norm, jnp.bfloat16, heads=1)
    wide = [array.astype(jnp.float32) for array in arrays]

    def attend(query, key, value):
        made = tpu_attention(
            query,
            key,
            value,
            KernelOptions(
                scale=SCALE,
                sizes=sizes(),
                online_sizes=sizes(),
                layout=layout,
                smooth_keys=False,
                tests_bounds=not uses_online_softmax,
                return_lse=True,
                interpret=pltpu.InterpretParams(),
            ),
        )
        _, exact = reference_attention(
            *(array.astype(jnp.float32) for array in (query, key, value)), scale=SCALE, return_lse=True
        )
        np.testing.assert_allclose(made[1], exact, atol=1e-5, rtol=1e-6)
        return made

    largest = float(jnp.abs(arrays[2]).max())
    np.testing.assert_allclose(in_two(attend, *arrays).astype(jnp.float32), masked(*wide), atol=2**-6 * largest)


@pytest.mark.parametrize("before, padding", [(48, 0), (96, 24), (0, 0)])
def test_the_pass_joins_as_the_formula_does(before, padding):
    keys = jax.random.split(jax.random.key(5), 4)
    lengths = (before + 144 + padding, 144)
    parts = [
        (
            jax.random.normal(key, (2, length, 3, 128)).astype(jnp.bfloat16),
            4 * jax.random.normal(other, (2, length, 3)),
        )
        for key, other, length in zip(keys[::2], keys[1::2], lengths, strict=True)
    ]
    plain, by_pass = (join_attentions(*parts, before=before, use_pallas=use, interpret=use) for use in (False, True))
    # the results differ by a rounding
    np.testing.assert_allclose(by_pass.astype(jnp.float32), plain.astype(jnp.float32), atol=2**-7)


def test_heads_of_both_forms_have_their_own_log_sums():
    small, large = arrays_of(1.0, jnp.bfloat16, heads=1), arrays_of(40.0, jnp.bfloat16, heads=1)
    query, key, value = (jnp.concatenate(pair, axis=2) for pair in list(zip(small, large, strict=True))[:3])
    options = KernelOptions(
        scale=SCALE,
        sizes=sizes(),
        online_sizes=sizes(),
        layout="columns",
        smooth_keys=False,
        return_lse=True,
        interpret=pltpu.InterpretParams(),
    )
    _, ours = tpu_attention(query, key, value, options)
    _, exact = reference_attention(*(array.astype(jnp.float32) for array in (query, key, value)), scale=SCALE, return_lse=True)
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5)


def test_unsupported_log_sum_exp_is_refused():
    query, key, value = arrays_of()[:3]
    with pytest.raises(NotImplementedError, match="excludes window_size and kv_lengths"):
        attention_with_lse(query, key, value, AttentionOptions(window_size=3))
    with pytest.raises(NotImplementedError, match="cudnn attention returns no log-sum-exp"):
        attention_with_lse(query, key, value, AttentionOptions(implementation="cudnn"))
