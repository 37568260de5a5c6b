"""The orders of tokens for sparse attention."""

import numpy as np
import pytest

from backend.models.common.token_order import order_by_tiles


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
