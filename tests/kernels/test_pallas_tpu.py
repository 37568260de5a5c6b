"""Compare the TPU kernel in the TPU interpreter with the formula: lengths that no block divides, windows, and both softmax
forms.
"""

import functools
import logging
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.attention import AttentionOptions, KvLengths, TpuOptions, api, attention
from kernels.attention.block_sizes import BlockSizes
from kernels.attention.pallas_tpu import (
    LOG2_E,
    KernelOptions,
    bounds_are_safe,
    head_bounds,
    subtract_mean_key,
    tpu_attention,
)
from kernels.attention.reference import reference_attention


@functools.cache
def sizes() -> BlockSizes:
    return BlockSizes(256, 512, 128, 256)


@functools.cache
def online_sizes() -> BlockSizes:
    return BlockSizes(128, 256, 128, 128)


@functools.cache
def compiled_reference() -> Callable[..., jax.Array]:
    return jax.jit(reference_attention, static_argnames=("scale", "window"))


EXACT_SCALE = math.log(2) / 8  # log2(e) * scale is 2 ** -3, so that folding it into the query rounds nothing


def random_arrays(length_q, length_kv, *, batch=1, heads=1, norm=1.0, seed=0):
    rng, lengths = np.random.default_rng(seed), zip((length_q, length_kv, length_kv), (norm, norm, 1.0), strict=True)
    drawn = [size * rng.standard_normal((batch, length, heads, 128), np.float32) for length, size in lengths]
    return [jnp.asarray(array.astype(jnp.bfloat16)) for array in drawn]


def are_safe(scaled, key, value):
    """Return whether the constant form is safe for each head, [B, H] bool. `scaled` is the query, multiplied by log2(e)."""
    return bounds_are_safe(head_bounds(scaled, key, value), key.shape[1])


def run(arrays, bias=None, *, scale=EXACT_SCALE, visited=None, kv_lengths=None, layer=None, **options):
    """Return the kernel's result in float32. `visited` collects the grid steps of both forms."""

    def record(token, point, core):
        visited.append(point)
        return token

    options = {"sizes": sizes(), "online_sizes": online_sizes(), "smooth_keys": False, "scale": scale} | options
    interpret = pltpu.InterpretParams(grid_point_recorder=None if visited is None else record)
    options = KernelOptions(interpret=interpret, **options)
    return np.asarray(tpu_attention(*arrays, options, bias, kv_lengths=kv_lengths, layer=layer).astype(jnp.float32))


def check(ours, arrays, bias=None, *, scale=EXACT_SCALE, window=None):
    """Check the result within its rounding. Weights are rounded to bfloat16, by at most 2 ** -8 of themselves, which changes
    their mean of the values by 2 ** -8 * max |v|. The result is rounded by as much again. Scores are exact products summed in
    float32 on both sides.
    """
    exact = compiled_reference()(*(array.astype(jnp.float32) for array in arrays), bias, scale=scale, window=window)
    largest_value = float(jnp.abs(arrays[2]).max())
    np.testing.assert_allclose(ours, exact, atol=2**-7 * largest_value)


@pytest.mark.parametrize(
    "length_q, length_kv, layout",
    [
        (1, 1, "heads"),
        pytest.param(1, 127, "columns", marks=pytest.mark.slow),
        pytest.param(257, 257, "heads", marks=pytest.mark.slow),
        (300, 1030, "columns"),
        (520, 40, "heads"),
    ],
)
def test_any_length_is_served_and_no_phantom_key_enters(length_q, length_kv, layout):
    arrays = random_arrays(length_q, length_kv, batch=2, heads=2)
    check(run(arrays, layout=layout), arrays)


def test_a_longer_sequence_over_many_blocks():
    arrays = random_arrays(257, 4097)
    check(run(arrays), arrays)


@pytest.mark.parametrize(
    "norm, length_q, length_kv, window",
    [
        pytest.param(1.0, 600, 1100, (100, 50), id="constant-inside"),
        pytest.param(1.0, 300, 40, (100, 10), id="constant-few keys", marks=pytest.mark.slow),
        pytest.param(6.0, 600, 1100, (100, 50), id="online-inside", marks=pytest.mark.slow),
        pytest.param(6.0, 100, 700, (0, 300), id="online-to the right"),
        pytest.param(1.0, 100, 700, (0, 300), id="constant-to the right", marks=pytest.mark.slow),
        pytest.param(6.0, 300, 40, (100, 10), id="online-few keys", marks=pytest.mark.slow),
    ],
)
def test_a_window_hides_what_is_outside_it(norm, length_q, length_kv, window):
    arrays = random_arrays(length_q, length_kv, norm=norm)
    check(run(arrays, window=window), arrays, window=window)


def test_a_bias_a_key_is_added_and_may_hide_keys():
    arrays = random_arrays(130, 300, batch=2)
    bias = jnp.stack([jnp.linspace(-3, 3, 300), jnp.where(jnp.arange(300) < 100, 0.0, -jnp.inf)])[:, None, None]
    check(run(arrays, bias), arrays, bias)


def test_smoothing_keys_changes_nothing_but_the_norms():
    query, key, value = random_arrays(200, 300, heads=2)
    key = key + (20 * jax.random.normal(jax.random.key(5), (1, 1, 2, 128))).astype(jnp.bfloat16)
    ours = run((query, key, value), smooth_keys=True)
    smooth = subtract_mean_key(key)
    # smoothed keys are rounded once more, which `check` does not count: compare with the formula for the rounded keys
    check(ours, (query, smooth, value))
    assert not are_safe(query / 2, key, value).any()
    assert are_safe(query / 2, smooth, value).all()


def test_the_usual_scale_stays_within_the_rounding_of_the_query():
    arrays = random_arrays(257, 300, heads=2)
    ours = run(arrays, scale=128**-0.5, smooth_keys=True)
    exact = compiled_reference()(*(array.astype(jnp.float32) for array in arrays), scale=128**-0.5)
    # Scores have variance 1, and 2 x 128 independent roundings move them by 2 ** -9 * sqrt(2 / 3). At four such deviations
    # and a value of 4, a weight moves the output by 0.01, on top of the bound of `check`.
    np.testing.assert_allclose(ours, exact, atol=0.01 + 2**-7 * 4)


def test_only_the_heads_that_need_it_take_the_online_form():
    query, key, value = random_arrays(300, 600, heads=3)
    loud = jnp.array([1.0, 30.0, 1.0], jnp.bfloat16).reshape(1, 1, 3, 1)
    arrays, visited = (query * loud, key, value), []
    safe = are_safe(arrays[0] / 8, key, value)
    np.testing.assert_array_equal(safe, [[True, False, True]])
    check(run(arrays, visited=visited), arrays)
    assert len(visited) == 2 * sizes().steps(300, 600) + online_sizes().steps(300, 600)


def test_the_online_form_serves_all_heads_where_none_is_safe():
    arrays, visited = random_arrays(200, 300, heads=2, norm=9.0), []
    assert not are_safe(arrays[0] / 8, *arrays[1:]).any()
    check(run(arrays, visited=visited), arrays)
    assert len(visited) == sizes().steps(200, 300) + 2 * online_sizes().steps(200, 300)  # the constant form has no head in use


def test_one_safe_head_visits_the_constant_form_only():
    arrays, visited = random_arrays(200, 300), []
    run(arrays, visited=visited)
    assert len(visited) == sizes().steps(200, 300)


def one_sided(length, largest_score):
    """Return queries and keys along one direction, plus a little noise: every score is near `largest_score`, in units of log2."""
    noise_q, noise_k, value = random_arrays(length, length, norm=0.02)
    size = math.sqrt(8 * abs(largest_score) / 128)
    sign = math.copysign(1, largest_score)
    return (noise_q + size).astype(jnp.bfloat16), (noise_k + sign * size).astype(jnp.bfloat16), value


@pytest.mark.parametrize(
    "score, is_safe", [(-100, True), (100, True), (-115, False), (115, False), (-5000, False), (5000, False)]
)
def test_rows_of_hugely_negative_or_positive_scores(score, is_safe):
    """300 keys leave +-(115 - 9) = 106 for the exponent."""
    arrays = one_sided(300, score)
    assert are_safe(arrays[0] / 8, *arrays[1:]).all() == is_safe
    check(run(arrays), arrays)


def test_the_limit_follows_the_number_of_keys_and_the_size_of_the_values():
    def largest_safe(length, size):
        value = jnp.full((1, length, 1, 128), size, jnp.bfloat16)
        key = jnp.zeros((1, length, 1, 128), jnp.bfloat16).at[..., 0].set(1)
        norms = (query for query in range(1, 128) if are_safe(key[:, :1] * query, key, value).all())
        return max(norms, default=0)

    assert largest_safe(1, 1.0) == 115
    assert largest_safe(1000, 1.0) == 105
    assert largest_safe(1000, 2.0**20) == largest_safe(1000, 2.0**-20) == 85
    assert largest_safe(4, 0.0) == 0  # log2(0): the bound is unknown, and the online form is right anyway


def test_not_a_number_is_never_called_safe():
    query, key, value = random_arrays(8, 8)
    assert not are_safe(query.at[0, 3].set(jnp.nan), key, value).any()


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda arrays: [array.astype("float32") for array in arrays], "takes bfloat16, not float32"),
        (lambda arrays: [array[..., :64] for array in arrays], "steps of 128, not 64"),
        (lambda arrays: [*arrays, np.zeros((1, 1, 8, 8), "float32")], "one bias a key"),
    ],
)
def test_what_the_kernel_cannot_serve_is_refused_with_the_reason(change, reason):
    with pytest.raises(NotImplementedError, match=reason):
        attention(*change(random_arrays(8, 8)), options=AttentionOptions(implementation="pallas_tpu"))


def test_without_a_mesh_the_choice_is_left_to_the_lowering():
    arrays = [jax.ShapeDtypeStruct((1, 4096, 2, 128), jnp.bfloat16)] * 3
    jaxpr = str(jax.make_jaxpr(attention)(*arrays))
    assert "platform_index" in jaxpr and "attention_constant_maximum" in jaxpr
    assert jax.jit(attention).lower(*arrays).as_text().count("tpu_custom_call") == 0


def test_a_fallback_says_its_reason_once(caplog, monkeypatch):
    api._log_once.cache_clear()
    monkeypatch.setattr(api, "target_platform", lambda: "tpu")
    arrays = [array.astype(jnp.float32) for array in random_arrays(300, 300)]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            attention(*arrays)
    assert [record.message for record in caplog.records] == [
        "attention on tpu falls back from pallas_tpu: the TPU kernel takes bfloat16, not float32; cast, or use 'blocked'"
    ]


def test_a_cpu_hears_nothing_of_the_tpu(caplog):
    api._log_once.cache_clear()
    arrays = [jax.ShapeDtypeStruct((1, 4096, 1, 128), jnp.float32)] * 3
    with caplog.at_level(logging.WARNING):
        jax.eval_shape(attention, *arrays)
    assert not caplog.records


def test_cudnn_is_refused_with_jax_s_reason_where_there_is_none():
    with pytest.raises(NotImplementedError, match="cuDNN"):
        attention(*random_arrays(8, 8), options=AttentionOptions(implementation="cudnn"))


def test_chunks_must_divide_their_blocks():
    with pytest.raises(ValueError, match="divide"):
        BlockSizes(256, 512, 192, 256)


def test_options_reach_the_kernel(monkeypatch):
    seen = []
    monkeypatch.setattr(api.pallas_tpu, "tpu_attention", lambda query, key, value, options, bias, **others: seen.append(options))
    tpu = TpuOptions(chip="v7x", sizes=sizes())
    attention(*random_arrays(300, 300), options=AttentionOptions(implementation="pallas_tpu", window_size=7, tpu=tpu))
    [options] = seen
    assert options.sizes == sizes() and options.window == (7, 7)
    assert options.vmem_limit_bytes == api.VMEM_LIMIT_BYTES["v7x"]
    assert options.scale * LOG2_E == pytest.approx(128**-0.5 * math.log2(math.e))


@pytest.mark.parametrize(
    "norm, tests_bounds",  # with a constant maximum, and with a running one
    [(1.0, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1.0, False), (200.0, True), (200.0, False)))],
)
def test_each_sample_sees_as_many_keys_as_it_is_told(norm, tests_bounds):
    """Counts are within a block, at a block's end, within the first block, and all keys. The keys after them do not count."""
    kv_lengths = KvLengths(values=jnp.array([1300, 1024, 40, 1410]), minimum=40)
    query, key, value = random_arrays(300, 1410, batch=4, heads=2, norm=norm)
    is_seen = (jnp.arange(1410) < kv_lengths.values[:, None])[..., None, None]
    spoiled = [jnp.where(is_seen, array, jnp.asarray(scale, array.dtype)) for array, scale in ((key, 3.0), (value, 50.0))]
    ours = run([query, *spoiled], kv_lengths=kv_lengths, tests_bounds=tests_bounds)
    for sample, count in enumerate(kv_lengths.values.tolist()):
        arrays = [query[sample : sample + 1], *(array[sample : sample + 1, :count] for array in (key, value))]
        check(ours[sample : sample + 1], arrays)


@pytest.mark.parametrize("counted_keys", [pytest.param(None, marks=pytest.mark.slow), (600, 700)])
@pytest.mark.parametrize("norm", [1.0, pytest.param(200.0, marks=pytest.mark.slow)])  # a constant maximum, and a running one
def test_a_layer_is_read_where_it_lies(norm, counted_keys):
    """The result has the same bits as with the layer's own keys and values. Keys and values of other layers do not count, even
    as NaN.
    """
    query, key, value = random_arrays(300, 700, batch=2, heads=2, norm=norm)
    bounds = head_bounds(query, key, value)
    kv_lengths = counted_keys and KvLengths(values=jnp.array(counted_keys), minimum=min(counted_keys))
    options = {"layout": "columns", "bounds": bounds, "kv_lengths": kv_lengths}
    stacked = [jnp.full((3, *array.shape), jnp.nan, array.dtype).at[1].set(array) for array in (key, value)]
    ours = run([query, *stacked], layer=jnp.int32(1), **options)
    np.testing.assert_array_equal(ours, run([query, key, value], **options))


def test_blocks_after_the_last_key_seen_are_left_out_of_the_sums_only():
    """The same lengths for all samples give the same result as shorter keys."""
    arrays = random_arrays(256, 1024, batch=2)
    counted = run(arrays, kv_lengths=KvLengths(values=jnp.array([600, 600]), minimum=600))
    check(counted, [arrays[0], *(array[:, :600] for array in arrays[1:])])
