"""Orders of a video's tokens for sparse attention. They put neighbours in space and time into the same block."""

import dataclasses

import jax
import numpy as np

Grid = tuple[int, int, int]
"""The number of tokens along time, height and width."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenOrder:
    """The order of a video's tokens. A place is an index into the reordered array, which can have padding between tokens.

    `tokens` [places] int32 are the numbers of the tokens at each place. Padding has the number of some other token. `places`
    [tokens] int32 are the places of each token. `counts` [blocks] int32 are the numbers of tokens in each block, before the
    padding at its end. Orders without padding, except in the last block, have no `counts`.
    """

    tokens: jax.Array | np.ndarray
    places: jax.Array | np.ndarray
    counts: jax.Array | np.ndarray | None = None


def order_by_tiles(grid: Grid, tile: Grid) -> TokenOrder:
    """Return the order in which each block is one tile of tokens, as NumPy arrays. `tile` has the sides of a tile.

    Tiles, and tokens within a tile, are ordered by time, height and width. Tiles at the border of the video can end with padding.
    """
    padding = [(0, -length % side) for length, side in zip(grid, tile, strict=True)]
    numbers = np.pad(np.arange(np.prod(grid), dtype=np.int32).reshape(grid), padding, constant_values=-1)
    split = [part for length, side in zip(numbers.shape, tile, strict=True) for part in (length // side, side)]
    tiles = numbers.reshape(split).transpose(0, 2, 4, 1, 3, 5).reshape(-1, np.prod(tile))
    tiles = np.take_along_axis(tiles, np.argsort(tiles < 0, axis=1, kind="stable"), axis=1)
    is_token = tiles >= 0
    tokens = np.where(is_token, tiles, tiles[:, :1]).reshape(-1)
    places = np.empty(np.prod(grid), np.int32)
    places[tokens[is_token.reshape(-1)]] = np.flatnonzero(is_token)
    return TokenOrder(tokens=tokens, places=places, counts=is_token.sum(1, dtype=np.int32))


def order_by_curve(grid: Grid) -> TokenOrder:
    """Return the order along the Morton curve, as NumPy arrays.

    The code of a token interleaves the bits of its frame, row and column. The lowest bit is from the frame, as in NVlabs/Sana.
    """
    sides = np.indices(grid).reshape(3, -1)
    codes = np.zeros(sides.shape[1], np.int64)
    for bit in range(max(grid).bit_length()):
        for axis in range(3):
            codes |= (sides[axis].astype(np.int64) >> bit & 1) << 3 * bit + axis
    tokens = np.argsort(codes).astype(np.int32)
    return TokenOrder(tokens=tokens, places=np.argsort(tokens).astype(np.int32))
