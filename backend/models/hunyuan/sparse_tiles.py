"""The tiles of SSTA, the sparse attention of HunyuanVideo 1.5's sparse checkpoints. Does not import JAX. Source:
Tencent-Hunyuan/HunyuanVideo-1.5 at commit 60783e70, hyvideo/models/transformers/hunyuanvideo_1_5_transformer.py (`attn_param`)
and modules/attention.py. `kernels.attention.ssta` describes the method."""

from backend.checkpoints.json_files import Config
from backend.models.spec import SPARSE
from kernels.tiles import TileSelection

TILE, KEPT_TILES = "sparse_blocks", "sparse_kept"
"""Entries in a transformer's configuration: the sides of a tile, and the number of tiles with the largest scores. Published files
lack them."""
VIDEO_TILE, PICTURE_TILE = (6, 8, 8), (1, 16, 24)
WINDOW = (3, 3, 3)
MOST_KEPT = 64
SHORT_VIDEO = 31  # videos with at most this number of latent frames select half as many tiles


def plan_tiles(config: Config, tokens: tuple[int, ...]) -> TileSelection | None:
    """Return the rule by which each tile selects the tiles that it sees. Return None for dense attention. `tokens` are the
    numbers of the video's tokens along time, height and width."""
    if config.get(SPARSE) is None:
        return None
    frames, rows, columns = config.get(TILE, VIDEO_TILE)
    tile, window, kept = (frames, rows, columns), WINDOW, config.get(KEPT_TILES, MOST_KEPT)
    if tokens[0] == 1:
        tile, window = PICTURE_TILE if tile == VIDEO_TILE else (1, rows, columns), (1, 1, 1)
    elif tokens[0] <= SHORT_VIDEO:
        kept //= 2
    depth, height, width = (-(-length // side) for length, side in zip(tokens, tile, strict=True))
    return TileSelection(tile=tile, grid=(depth, height, width), window=window, kept=min(kept, depth * height * width))
