"""The rule by which sparse attention selects tiles of a video's tokens. This module does not import JAX."""

import dataclasses
import math

Sides = tuple[int, int, int]
"""Lengths along time, height and width."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileSelection:
    """The rule by which each tile of a video's tokens selects the tiles whose tokens it sees.

    A tile sees the tiles in a window around it, and the `kept` tiles with the largest scores. A tile can be in both sets.

    Attributes:
        tile: the number of tokens in a tile along time, height and width.
        grid: the number of tiles along each axis. The last tile of an axis can contain padding.
        window: the number of tiles in the window along each axis, odd. It is shifted to stay inside the video.
        kept: the number of tiles that are selected by score, from 1 to `num_tiles`.
    """

    tile: Sides
    grid: Sides
    window: Sides
    kept: int

    @property
    def size(self) -> int:
        return math.prod(self.tile)

    @property
    def num_tiles(self) -> int:
        return math.prod(self.grid)

    @property
    def most_seen(self) -> int:
        return min(math.prod(map(min, self.window, self.grid)) + self.kept, self.num_tiles)
