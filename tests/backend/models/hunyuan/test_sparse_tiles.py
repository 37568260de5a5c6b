"""The tiles of SSTA have the published sizes and numbers. Context tokens are padded to whole tiles."""

import numpy as np
import pytest

from backend.errors import ModelError
from backend.models.hunyuan.conditions import make_context_tokens
from backend.models.hunyuan.sparse_tiles import plan_tiles
from backend.models.hunyuan.spec import HUNYUAN
from backend.schemas.request import example_request
from presets import load_preset

SPARSE = {"sparse_attention": "ssta"}
PRESET = "hunyuanvideo-1.5-i2v-720p-sparse"


@pytest.mark.parametrize(
    "tokens, tile, grid, kept, most_seen",
    [
        ((31, 45, 80), (6, 8, 8), (6, 6, 10), 32, 59),
        ((32, 45, 80), (6, 8, 8), (6, 6, 10), 64, 91),
        ((61, 45, 80), (6, 8, 8), (11, 6, 10), 64, 91),
        ((1, 45, 80), (1, 16, 24), (1, 3, 4), 12, 12),
        ((5, 16, 16), (6, 8, 8), (1, 2, 2), 4, 4),
    ],
)
def test_tiles_are_the_published_ones(tokens, tile, grid, kept, most_seen):
    tiles = plan_tiles(SPARSE, tokens)
    assert (tiles.tile, tiles.grid, tiles.kept, tiles.most_seen) == (tile, grid, kept, most_seen)
    assert tiles.size == 384
    assert plan_tiles({}, tokens) is None


@pytest.mark.parametrize("length", [3, 12])
def test_context_tokens_fill_whole_tiles(length):
    text = {
        "prompt_embeds": np.ones((1, 8, 2), np.float32),
        "prompt_embeds_mask": np.float32([[1, 1, 0, 0, 0, 0, 0, 0]]),
        "prompt_embeds_mask_2": np.float32([[1, 0, 0, 0]]),
    }
    tokens = make_context_tokens(np, text, num_seen=1, length=length, dtype=np.dtype(np.float32), multiple=8)
    assert tokens.order.shape == (1, 8 if length == 3 else 16)
    assert tokens.counts == 4 and tokens.order[0, :4].tolist() == [0, 1, 5, 6]


def test_another_method_is_refused():
    preset = load_preset(PRESET)
    configs = preset.network_configs()
    other = configs | {"transformer": configs["transformer"] | {"sparse_attention": "sla"}}
    with pytest.raises(ModelError, match="its transformer has the sparse attention sla"):
        HUNYUAN.read_spec(preset.checkpoint_index(), other)


def test_sparse_attention_has_less_arithmetic():
    preset = load_preset(PRESET)
    configs = preset.network_configs()
    transformer = {name: value for name, value in configs["transformer"].items() if name != "sparse_attention"}
    sparse, dense = (
        HUNYUAN.step_flops(each, example_request(preset), 1) for each in (configs, configs | {"transformer": transformer})
    )
    assert sparse.matmul == dense.matmul
    assert sparse.attention / dense.attention == pytest.approx(59 * 384 / (31 * 45 * 80), rel=0.1)
