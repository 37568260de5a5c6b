"""SSTA against NumPy, with tiles at borders and several samples, and its identities."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.attention import SparseHeads, reference, ssta_attention
from kernels.attention.block_sparse import BlockSparseOptions, block_sparse_attention
from kernels.attention.ssta import select_tiles
from kernels.qkv import LOG2_E, HeadBounds
from kernels.tiles import TileSelection
from tests.kernels.sparse_reference import ssta_attention as plain_attention
from tests.kernels.sparse_reference import ssta_lists

HEADS, WIDTH, CONTEXT = 2, 128, 3


def make_tiles(grid, kept, tile=(2, 2, 4), window=(3, 3, 3)):
    return TileSelection(tile=tile, grid=grid, window=window, kept=kept)


def make_heads(tiles, batch=2, dtype="float32"):
    """Return heads in tiles whose last tokens are padding in every third tile, followed by the context."""
    rng = np.random.default_rng(tiles.num_tiles + 2)  # with this seed, no score is near the limit
    whole, length = tiles.num_tiles * tiles.size, (tiles.num_tiles + CONTEXT) * tiles.size
    place = np.arange(length)
    is_padding = (place < whole) & (place // tiles.size % 3 == 1) & (place % tiles.size >= tiles.size // 2)
    arrays = [np.where(is_padding[:, None, None], 0, rng.standard_normal((batch, length, HEADS, WIDTH))) for _ in range(3)]
    query, key, value = (jnp.asarray(array, dtype) for array in arrays)
    return SparseHeads(query=query[:, :whole], key=key, value=value, num_keys=length, num_queries=whole)


def plain_lists(heads, tiles):
    sums = [
        np.asarray(array)[:, : tiles.num_tiles * tiles.size]
        .reshape(len(array), tiles.num_tiles, tiles.size, HEADS, WIDTH)
        .sum(2)
        .swapaxes(1, 2)
        for array in (heads.query, heads.key)
    ]
    scores, is_seen = ssta_lists(*sums, tiles.grid, tiles.window, tiles.kept)
    ordered = np.sort(scores, axis=3)[..., ::-1]
    assert tiles.kept == tiles.num_tiles or (ordered[..., tiles.kept - 1] - ordered[..., tiles.kept]).min() > 1e-6
    return is_seen


CASES = {
    "a grid with a middle": make_tiles((4, 4, 5), 6),
    "fewer tiles than the window": make_tiles((2, 1, 4), 2),
    "no window": make_tiles((1, 3, 4), 4, window=(1, 1, 1)),
    "all tiles": make_tiles((2, 2, 2), 8),
    "blocks of queries that share a tile's list": make_tiles((1, 3, 4), 2, tile=(4, 8, 8), window=(1, 1, 1)),
}


@pytest.mark.parametrize("tiles", CASES.values(), ids=CASES)
@pytest.mark.parametrize("implementation", ["masked", "gathered"])
def test_ssta_equals_numpy(tiles, implementation):
    heads, context_tiles = make_heads(tiles), (1, 3)
    arrays = [np.asarray(array) for array in (heads.query, heads.key, heads.value)]
    expected = plain_attention(*arrays, plain_lists(heads, tiles), tiles.size, context_tiles)
    found = ssta_attention(heads, tiles, jnp.asarray(context_tiles, jnp.int32), implementation=implementation)
    np.testing.assert_allclose(found, expected, atol=3e-5)


def test_a_tile_sees_the_window_the_best_tiles_and_the_context():
    tiles = make_tiles((4, 4, 5), 6)
    heads = make_heads(tiles)
    blocks = select_tiles(heads, tiles, jnp.asarray([0, 2], jnp.int32))
    assert blocks.indices.shape[3] == 27 + 6 + CONTEXT
    sizes = set(np.asarray(blocks.counts[0]).ravel().tolist())
    assert len(sizes) > 1 and sizes <= set(range(27, 27 + 6 + 1)), "the window and the best tiles overlap differently"
    for sample, context_tiles in enumerate((0, 2)):
        for place in np.ndindex(HEADS, tiles.num_tiles):
            listed = np.asarray(blocks.indices[sample][place])[: int(blocks.counts[sample][place])]
            expected = np.flatnonzero(plain_lists(heads, tiles)[sample][place])
            np.testing.assert_array_equal(listed, [*expected, *range(tiles.num_tiles, tiles.num_tiles + context_tiles)])


def test_with_all_tiles_and_the_whole_context_ssta_is_dense_attention():
    tiles = make_tiles((3, 2, 2), 12)
    heads = make_heads(tiles)
    dense = reference.reference_attention(heads.query, heads.key, heads.value, scale=WIDTH**-0.5)
    np.testing.assert_allclose(ssta_attention(heads, tiles, jnp.full(2, CONTEXT, jnp.int32)), dense, atol=1e-5)


def test_the_second_half_of_the_queries_gives_the_second_half_of_the_attention():
    tiles = make_tiles((4, 4, 5), 6)
    heads, context_tiles = make_heads(tiles), jnp.asarray([1, 2], jnp.int32)
    whole = ssta_attention(heads, tiles, context_tiles)
    half = tiles.num_tiles // 2 * tiles.size
    extra = jnp.zeros((2, tiles.size, HEADS, WIDTH))  # a tile after the last one
    second = dataclasses.replace(heads, query=jnp.concatenate([heads.query[:, half:], extra], axis=1))
    found = ssta_attention(second, tiles, context_tiles, first_tile=jnp.int32(tiles.num_tiles // 2))
    np.testing.assert_allclose(found[:, : -tiles.size], whole[:, half:], atol=1e-5)
    assert np.isfinite(np.asarray(found)).all()


def test_the_arrays_that_the_tpu_passes_prepare_give_the_same_attention():
    """The passes scale the query and subtract the mean key. The selection then runs as a TPU kernel, here in the interpreter."""
    tiles = make_tiles((1, 3, 4), 3, tile=(2, 8, 8), window=(1, 1, 1))
    heads, context_tiles = make_heads(tiles, batch=1), jnp.asarray([2], jnp.int32)
    mean, zeros = heads.key.mean(1, keepdims=True) + 0.5, jnp.zeros((1, HEADS))
    prepared = dataclasses.replace(
        heads,
        query=heads.query * (LOG2_E * WIDTH**-0.5),
        key=heads.key - mean,
        mean=mean,
        bounds=HeadBounds(query=zeros, key=zeros, value=zeros),
    )
    with pltpu.force_tpu_interpret_mode():
        found = ssta_attention(prepared, tiles, context_tiles, implementation="gathered")
    np.testing.assert_allclose(found, ssta_attention(heads, tiles, context_tiles), atol=1e-4)


def test_the_tpu_kernel_computes_the_lists_of_a_tile_of_the_published_size():
    tiles = make_tiles((1, 2, 3), 2, tile=(6, 8, 8))
    heads, context_tiles = make_heads(tiles, batch=1, dtype="bfloat16"), jnp.asarray([2], jnp.int32)
    blocks = select_tiles(heads, tiles, context_tiles)
    assert (blocks.block_q, blocks.block_kv, blocks.indices.shape[2]) == (128, 384, 18)
    options = BlockSparseOptions(num_keys=heads.num_keys, implementation="pallas_tpu", interpret=True)
    found = block_sparse_attention(heads.query, heads.key, heads.value, blocks, options)
    expected = ssta_attention(heads, tiles, context_tiles, implementation="gathered")
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=0.02)
