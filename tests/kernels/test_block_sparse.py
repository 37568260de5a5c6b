"""Block-sparse attention against NumPy: every implementation, the selection of key blocks, and SLA with its identities."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import api, block_sparse, block_sparse_tpu, key_selection, reference, sla_tpu
from kernels.attention.block_sparse import BlockSparseOptions, KeyBlocks, Summaries, block_sparse_attention
from kernels.attention.pallas_tpu import bounds_are_safe
from kernels.attention.sla import SMALLEST_SUM, SparseHeads, select_key_blocks, sla_attention
from kernels.qkv import LOG2_E, HeadBounds
from tests.kernels.sparse_reference import block_attention, linear_attention, sla_lists

HEADS, WIDTH = 2, 128


@dataclasses.dataclass(frozen=True)
class Case:
    """Lengths, entries of a list, and block sizes. `uneven`: key blocks with few keys. `short`: lists of different lengths.

    `scale` multiplies the arrays of all heads, except the first `quiet_heads` heads of the first samples."""

    queries: int
    keys: int
    entries: int
    block_q: int = 128
    block_kv: int = 64
    uneven: bool = False
    short: bool = False
    summaries: bool = False
    scale: float = 1.0
    quiet_heads: int = 0
    batch: int = 1

    def make(self, dtype):
        rng = np.random.default_rng(self.queries + self.entries)
        scale = np.where(np.arange(self.batch * HEADS) < self.quiet_heads, 1, self.scale).reshape(self.batch, 1, HEADS, 1)
        arrays = [
            jnp.asarray(rng.standard_normal((self.batch, length, HEADS, WIDTH)) * scale, dtype)
            for length in (self.queries, self.keys, self.keys)
        ]
        blocks_q, blocks_kv = -(-self.queries // self.block_q), -(-self.keys // self.block_kv)
        shape = (self.batch, HEADS, blocks_q, self.entries)
        lists = [np.sort(rng.permutation(blocks_kv)[: self.entries]) for _ in range(self.batch * HEADS * blocks_q)]
        lists = np.stack(lists).reshape(shape)
        counts = rng.integers(0, self.entries + 1, shape[:3]) if self.short else np.full(shape[:3], self.entries)
        sizes = np.minimum(self.keys - np.arange(blocks_kv) * self.block_kv, self.block_kv)
        if self.uneven:
            sizes = np.minimum(sizes, rng.integers(1, self.block_kv + 1, blocks_kv))
        blocks = KeyBlocks(
            indices=jnp.asarray(lists, jnp.int32),
            counts=jnp.asarray(counts, jnp.int32) if self.short else None,
            sizes=jnp.asarray(sizes, jnp.int32) if self.uneven else None,
            block_q=self.block_q,
            block_kv=self.block_kv,
        )
        plain = [[[lists[b, h, i, : counts[b, h, i]] for i in range(blocks_q)] for h in range(HEADS)] for b in range(self.batch)]
        summaries = None
        if self.summaries:
            key, value = (jnp.asarray(rng.standard_normal((self.batch, HEADS, blocks_kv, WIDTH)), dtype) for _ in range(2))
            bias = np.where(rng.random((self.batch, HEADS, blocks_q, blocks_kv)) < 0.5, -np.inf, np.log(self.block_kv))
            summaries = Summaries(key=key, value=value, bias=jnp.asarray(bias, jnp.float32))
        return arrays, blocks, plain, sizes, summaries


CASES = {
    "whole": Case(256, 256, 3),
    "ragged": Case(193, 193, 3),
    "one block": Case(130, 129, 1),
    "all blocks": Case(100, 184, 3),
    "uneven tiles": Case(100, 320, 3, block_q=64, uneven=True),
    "short lists": Case(300, 300, 4, short=True),
    "summaries": Case(200, 300, 4, short=True, summaries=True),
    "wide tiles": Case(400, 800, 2, block_q=384, block_kv=384),
    "large scores": Case(200, 300, 4, scale=3.5),
    "two samples": Case(200, 300, 4, scale=3.5, quiet_heads=3, batch=2),
    "long lists": Case(60, 20 * 64 - 7, 20, block_q=16, short=True, summaries=True, scale=3.5, quiet_heads=1),
    "long whole lists": Case(20, 30 * 64 - 7, 30),
}


def attend(arrays, blocks, options, summaries=None):
    """Attend in one program, which compiles faster than its operations one by one."""
    return jax.jit(lambda arrays, blocks: block_sparse_attention(*arrays, blocks, options, summaries))(arrays, blocks)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("implementation", ["masked", "gathered"])
def test_plain_implementations_equal_numpy(name, implementation):
    arrays, blocks, lists, sizes, summaries = CASES[name].make(jnp.float32)
    options = BlockSparseOptions(implementation=implementation, return_lse=True)
    attended, lse = attend(arrays, blocks, options, summaries)
    given = None if summaries is None else (summaries.key, summaries.value, summaries.bias)
    expected, expected_lse = block_attention(*arrays, lists, sizes, blocks.block_q, blocks.block_kv, given)
    np.testing.assert_allclose(attended, expected, atol=2e-5 * CASES[name].scale ** 2)
    seen = np.isfinite(expected_lse)
    np.testing.assert_allclose(np.asarray(lse)[seen], expected_lse[seen], atol=2e-5 * CASES[name].scale ** 2)
    assert (np.asarray(attended)[~seen] == 0).all()


@pytest.mark.parametrize(
    "name", ["ragged", "uneven tiles", "summaries", "large scores", "two samples", "long lists", "long whole lists"]
)
def test_the_tpu_kernel_equals_numpy(name, monkeypatch):
    """The kernel runs in Pallas' interpreter. Heads with large scores use the online softmax. Long lists need several iterations
    of the kernel's loop, which are short here because they then compile faster."""
    if name.startswith("long"):
        monkeypatch.setattr(block_sparse_tpu, "LOOPED", 8)
        monkeypatch.setattr(block_sparse_tpu, "LONGEST_UNROLLED", 16)
    arrays, blocks, lists, sizes, summaries = CASES[name].make(jnp.bfloat16)
    scaled = (arrays[0].astype(jnp.float32) * (LOG2_E * WIDTH**-0.5)).astype(jnp.bfloat16)
    norms = [jnp.linalg.norm(array.astype(jnp.float32), axis=3).max(1) for array in (scaled, arrays[1])]
    bounds = HeadBounds(query=norms[0], key=norms[1], value=jnp.abs(arrays[2]).max((1, 3)).astype(jnp.float32))
    longest = max(len(entries) for sample in lists for head in sample for entries in head)
    assert (longest > block_sparse_tpu.LOOPED) == name.startswith("long")
    is_safe = np.asarray(bounds_are_safe(bounds, CASES[name].keys)).reshape(-1)
    np.testing.assert_array_equal(is_safe, (np.arange(is_safe.size) < CASES[name].quiet_heads) | (CASES[name].scale == 1))
    options = BlockSparseOptions(implementation="pallas_tpu", return_lse=True, interpret=True, bounds=bounds)
    attended, lse = attend((scaled, *arrays[1:]), blocks, options, summaries)
    given = None if summaries is None else (summaries.key, summaries.value, summaries.bias)
    plain = np.asarray(scaled, np.float64) / (LOG2_E * WIDTH**-0.5)
    expected, expected_lse = block_attention(plain, *arrays[1:], lists, sizes, blocks.block_q, blocks.block_kv, given)
    np.testing.assert_allclose(np.asarray(attended, np.float64), expected, atol=0.02 * CASES[name].scale)
    seen = np.isfinite(expected_lse)
    np.testing.assert_allclose(np.asarray(lse)[seen], expected_lse[seen], atol=2e-3)
    assert (np.asarray(attended, np.float32)[~seen] == 0).all()


@pytest.mark.parametrize(
    ("block_kv", "reason"),
    [(192, "key blocks of 64 or in steps of 128"), (1024, "at most 1023 keys in a block, not 1024")],
)
def test_the_tpu_kernel_refuses_key_blocks_that_it_cannot_compute(block_kv, reason):
    arrays, blocks, *_ = Case(128, 2 * block_kv, 1, block_kv=block_kv).make(jnp.bfloat16)
    with pytest.raises(NotImplementedError, match=reason):
        attend(arrays, blocks, BlockSparseOptions(implementation="pallas_tpu", interpret=True))


def test_a_process_that_does_not_use_the_dense_tpu_kernel_does_not_choose_the_block_sparse_kernel(monkeypatch):
    arrays, blocks, *_ = Case(128, 128, 1).make(jnp.bfloat16)
    monkeypatch.setattr(block_sparse, "target_platform", lambda: "tpu")
    monkeypatch.setattr(api, "disabled", set())
    assert block_sparse._choose(*arrays[:2], blocks, BlockSparseOptions()) == "pallas_tpu"
    api.disable_implementation("pallas_tpu")
    assert block_sparse._choose(*arrays[:2], blocks, BlockSparseOptions()) == "masked"


def test_two_lists_join_to_one_by_their_log_sum_exp():
    arrays, blocks, *_ = Case(256, 512, 8).make(jnp.float32)
    parts = [
        attend(arrays, dataclasses.replace(blocks, indices=blocks.indices[..., part]), BlockSparseOptions(return_lse=True))
        for part in (slice(0, 3), slice(3, 8))
    ]
    weights = jax.nn.softmax(jnp.stack([lse for _, lse in parts]), axis=0)[..., None]
    joined = sum(weight * attended for weight, (attended, _) in zip(weights, parts, strict=True))
    np.testing.assert_allclose(joined, reference.reference_attention(*arrays, scale=WIDTH**-0.5), atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_largest_scores_are_listed_in_ascending_order_and_ties_go_to_the_lower_index(dtype):
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.standard_normal((1, 2, 40, 297)).round(1), dtype).at[0, 0, 0, :5].set(-0.0).at[0, 0, 0, 5:9].set(0.0)
    order = np.argsort(-np.asarray(scores, np.float64), axis=-1, kind="stable")
    for number in (1, 13, 297):
        expected = np.sort(order[..., :number], axis=-1)
        for options in ({}, {"use_pallas": True, "interpret": True}):
            np.testing.assert_array_equal(key_selection.largest(scores, number, **options)[0], expected)
    counts = rng.integers(0, 14, (1, 2, 40))
    lists = [
        key_selection.largest(scores, 13, jnp.asarray(counts), **options)[0]
        for options in ({}, {"use_pallas": True, "interpret": True})
    ]
    for index in np.ndindex(counts.shape):
        for found in lists:
            np.testing.assert_array_equal(found[index][: counts[index]], np.sort(order[index][: counts[index]]))


@pytest.mark.parametrize("block", [64, 128])
def test_means_exclude_the_padding(block):
    array = jnp.asarray(np.random.default_rng(1).standard_normal((2, 700, 2, WIDTH)), jnp.float32)
    expected = np.stack([np.asarray(array)[:, i : min(i + block, 650)].mean(1) for i in range(0, 650, block)], 2)
    for options in ({}, {"use_pallas": True, "interpret": True}):
        found = key_selection.block_means(array, block, 650, **options)
        np.testing.assert_allclose(found[:, :, : expected.shape[2]], expected, atol=1e-6)


def sla_case(length, num_keys, seed=2):
    rng = np.random.default_rng(seed)
    query, key, value = (jnp.asarray(rng.standard_normal((1, length, HEADS, WIDTH)), jnp.float32) for _ in range(3))
    heads = SparseHeads(query=query, key=key, value=value, num_keys=num_keys, num_queries=num_keys)
    projection = tuple(jnp.asarray(rng.standard_normal(shape) * 0.1, jnp.float32) for shape in ((WIDTH, WIDTH), (WIDTH,)))
    return heads, projection


def attend_sla(heads, keep, *projections):
    """Return the selected blocks, and the attention with each projection, computed in one program."""

    def run(query, key, value):
        given = dataclasses.replace(heads, query=query, key=key, value=value)
        blocks = select_key_blocks(given, keep)
        return blocks, [sla_attention(given, blocks, projection) for projection in projections]

    return jax.jit(run)(heads.query, heads.key, heads.value)


@pytest.mark.parametrize(("length", "num_keys"), [(512, 512), (577, 577), (640, 568), (129, 129)])
def test_sla_equals_numpy(length, num_keys):
    heads, (weight, bias) = sla_case(length, num_keys)
    arrays = [np.asarray(array)[:, :num_keys] for array in (heads.query, heads.key, heads.value)]
    blocks, (attended,) = attend_sla(heads, 0.3, (weight, bias))
    scores, lists = sla_lists(*arrays[:2], 0.3, 128, 64)
    ordered = np.sort(scores, axis=-1)[..., ::-1]
    kept = lists.shape[-1]
    assert kept == scores.shape[-1] or (ordered[..., kept - 1] - ordered[..., kept]).min() > 1e-5, "no score is near the limit"
    np.testing.assert_array_equal(blocks.indices[:, :, : lists.shape[2]], lists)
    sizes = np.minimum(num_keys - np.arange(scores.shape[-1]) * 64, 64)
    sparse, _ = block_attention(*arrays, lists, sizes, 128, 64)
    expected = sparse + linear_attention(*arrays) @ np.asarray(weight).T + np.asarray(bias)
    np.testing.assert_allclose(attended[:, :num_keys], expected, atol=3e-5)


def test_sla_without_projection_and_with_all_blocks_is_dense_attention():
    heads, (weight, bias) = sla_case(300, 300)
    _, found = attend_sla(heads, 1.0, None, (weight * 0, bias * 0))
    dense = reference.reference_attention(heads.query, heads.key, heads.value, scale=WIDTH**-0.5)
    for attended in found:
        np.testing.assert_allclose(attended, dense, atol=1e-5)


def test_a_constant_added_to_all_keys_changes_no_list_and_no_sparse_attention():
    heads, _ = sla_case(512, 512)
    shifted = dataclasses.replace(heads, key=heads.key + 0.5)
    (blocks, (attended,)), (others, (same,)) = (attend_sla(each, 0.25, None) for each in (heads, shifted))
    np.testing.assert_array_equal(blocks.indices, others.indices)
    np.testing.assert_allclose(attended, same, atol=1e-4)


def test_the_tpu_passes_of_linear_attention_equal_numpy():
    heads, (weight, bias) = sla_case(640, 568)
    factor = LOG2_E * WIDTH**-0.5
    mean = heads.key.mean(1, keepdims=True)
    products = sla_tpu.sum_products(heads.key - mean, heads.value, mean, heads.num_keys, interpret=True)
    zeros = jnp.zeros_like(heads.query)
    found = sla_tpu.add_linear(zeros, heads.query * factor, products, (weight, bias), 1 / factor, SMALLEST_SUM, interpret=True)
    arrays = [np.asarray(array)[:, :568] for array in (heads.query, heads.key, heads.value)]
    expected = linear_attention(*arrays) @ np.asarray(weight).T + np.asarray(bias)
    np.testing.assert_allclose(found[:, :568], expected, atol=2e-5)
