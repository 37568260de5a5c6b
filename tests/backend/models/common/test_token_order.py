"""The orders of tokens for sparse attention."""

import numpy as np
import pytest

from backend.models.common.token_order import order_by_curve, order_by_tiles


@pytest.mark.parametrize("grid", [(4, 4, 4), (5, 6, 7), (1, 3, 2), (8, 4, 12)])
def test_tiles_hold_the_neighbours_of_a_cube_and_end_with_padding(grid):
    order, tile = order_by_tiles(grid, (4, 4, 4)), (4, 4, 4)
    numbers = np.arange(np.prod(grid)).reshape(grid)
    corners = [np.arange(0, length, side) for length, side in zip(grid, tile, strict=True)]
    boxes = [numbers[t : t + 4, h : h + 4, w : w + 4].reshape(-1) for t in corners[0] for h in corners[1] for w in corners[2]]
    np.testing.assert_array_equal(order.counts, [len(box) for box in boxes])
    for place, box in enumerate(boxes):
        found = order.tokens[place * 64 : place * 64 + 64]
        np.testing.assert_array_equal(found[: len(box)], box)
        assert (found[len(box) :] == box[0]).all()
    np.testing.assert_array_equal(order.tokens[order.places], np.arange(np.prod(grid)))


def test_the_curve_passes_through_cubes_one_after_the_other():
    order = order_by_curve((4, 8, 8))
    places = np.stack(np.unravel_index(order.tokens, (4, 8, 8)), 1)
    np.testing.assert_array_equal(places[:9], [[t, h, w] for w in (0, 1) for h in (0, 1) for t in (0, 1)] + [[2, 0, 0]])
    for start in range(0, 256, 64):
        cube = places[start : start + 64]
        assert (cube.max(0) - cube.min(0) == 3).all()


@pytest.mark.parametrize("grid", [(5, 6, 7), (1, 3, 2), (21, 3, 5)])
def test_the_curve_has_every_token_once(grid):
    order = order_by_curve(grid)
    np.testing.assert_array_equal(np.sort(order.tokens), np.arange(np.prod(grid)))
    np.testing.assert_array_equal(order.tokens[order.places], np.arange(np.prod(grid)))
