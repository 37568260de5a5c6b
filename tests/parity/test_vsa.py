"""Transformers with VSA equal diffusers' transformer with a plain PyTorch attention of the published formulas, float32.

The tiny transformers have random weights, also in the gates. Tiles at the video's border have fewer tokens.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanAttention
from safetensors.torch import load_file, save_file

from backend.pipeline import load as load_module
from tests.parity.test_few_steps import TOLERANCE, reference_latents
from tests.parity.test_parity import LEAST_PSNR, psnr
from tests.parity.test_sla import WEIGHTS, rotate
from tests.parity.tiny_checkpoints import HEAD_WIDTH, HEADS, LAYERS, make_checkpoint, make_preset
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import Tiny, decode_reference, latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

TILE, KEEP = (2, 2, 4), 0.3
GATE = "attn1.to_gate_compress"
Sides = tuple[int, int, int]


class PlainVsa:
    """A processor of diffusers' `WanAttention` that computes VSA of a video with these numbers of tokens. `gate` has a weight and
    a bias."""

    def __init__(self, tokens: Sides, gate: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.gate = gate
        grid = [-(-length // side) for length, side in zip(tokens, TILE, strict=True)]
        places = torch.meshgrid(*(torch.arange(length) // side for length, side in zip(tokens, TILE, strict=True)), indexing="ij")
        self.tile = ((places[0] * grid[1] + places[1]) * grid[2] + places[2]).flatten()  # the number of each token's tile
        self.num_tiles = math.prod(grid)

    def __call__(
        self, attn: WanAttention, hidden_states: torch.Tensor, text: None, mask: None, rotary_emb: tuple
    ) -> torch.Tensor:
        query, key, value = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
        gate = torch.nn.functional.linear(hidden_states, *self.gate)
        query, key, value, gate = (
            array.unflatten(2, (attn.heads, -1)).transpose(1, 2) for array in (attn.norm_q(query), attn.norm_k(key), value, gate)
        )
        query, key = rotate(query, rotary_emb), rotate(key, rotary_emb)
        queries, keys, values = (self._tile_means(array) for array in (query, key, value))
        scores = queries @ keys.mT * query.shape[-1] ** -0.5
        kept = scores.topk(math.ceil(KEEP * self.num_tiles)).indices
        seen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, kept, True)[:, :, self.tile][..., self.tile]
        own = query @ key.mT * query.shape[-1] ** -0.5
        fine = own.masked_fill(~seen, -torch.inf).softmax(-1) @ value
        attended = fine + gate * (scores.softmax(-1) @ values)[:, :, self.tile]
        return attn.to_out[0](attended.transpose(1, 2).flatten(2))

    def _tile_means(self, array: torch.Tensor) -> torch.Tensor:
        """Return the means of the tiles of [B, H, S, D], [B, H, tiles, D]."""
        return torch.stack([array[:, :, self.tile == tile].mean(2) for tile in range(self.num_tiles)], 2)


def add_vsa(folder: Path) -> None:
    """Turn the transformer in this folder into one with VSA, and with gates of order 1."""
    state, config = load_file(folder / WEIGHTS), json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sparse_attention": "vsa", "sparse_blocks": TILE}))
    generator, width = torch.Generator().manual_seed(4), HEADS * HEAD_WIDTH
    for layer in range(LAYERS):
        name = f"blocks.{layer}.{GATE}"
        state[f"{name}.weight"] = torch.randn(width, width, generator=generator) * width**-0.5
        state[f"{name}.bias"] = torch.randn(width, generator=generator) * 0.3
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def compute_vsa(made: Tiny, tokens: Sides) -> None:
    """Let diffusers' transformer of a checkpoint compute VSA of videos with these numbers of tokens."""
    state = load_file(Path(made.preset.model) / "transformer" / WEIGHTS)
    for index, block in enumerate(made.reference.transformer.blocks):
        weight, bias = (state[f"blocks.{index}.{GATE}.{name}"] for name in ("weight", "bias"))
        block.attn1.set_processor(PlainVsa(tokens, (weight, bias)))


@pytest.fixture(scope="module")
def vsa(tmp_path_factory) -> Iterator[Callable[[str], Tiny]]:
    """A factory of tiny checkpoints with VSA. Their presets offer the sampler of DMD, as FastWan's presets."""
    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)

        @functools.cache
        def make(family: str) -> Tiny:
            folder = make_checkpoint(family, tmp_path_factory.mktemp(family))
            add_vsa(folder / "transformer")
            facts = {"name": f"tiny-{family}-vsa", "solvers": ("dmd",), "solver": "dmd", "sparse_keep": KEEP, "guidance": (1.0,)}
            preset = make_preset(family, folder).model_copy(update=facts)
            presets[preset.name] = preset
            return Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None))

        yield make


CASES = [("wan2.1-t2v", 1, False), ("wan2.1-t2v", 3, False), ("wan2.2-ti2v", 3, True)]


@pytest.mark.parametrize("family, steps, has_image", CASES)
def test_latents_and_video_equal_the_formulas(family, steps, has_image, vsa, pictures):
    made = vsa(family)
    given, tokens = ({"image": pictures["image"]}, (3, 2, 2)) if has_image else ({"width": 80}, (3, 4, 5))
    compute_vsa(made, tokens)
    request = made.request(steps=steps, **given)
    ours, reference = latents_of(request, made.loaded), reference_latents(made, request)
    assert np.abs(ours - reference).max() <= TOLERANCE
    assert psnr(video_of(request, made.loaded, ours), decode_reference(made, reference)) >= LEAST_PSNR


@pytest.mark.parametrize("part", ["keep", "gate"])
def test_the_selection_and_the_gate_matter(part, vsa, monkeypatch):
    """Otherwise the test above would not notice a wrong selection or a wrong gate."""
    made = vsa("wan2.1-t2v")
    compute_vsa(made, (3, 4, 5))
    request = made.request(steps=1, width=80)
    if part == "keep":
        monkeypatch.setattr("tests.parity.test_vsa.KEEP", 1.0)
    for block in made.reference.transformer.blocks if part == "gate" else ():
        monkeypatch.setattr(block.attn1.processor, "gate", tuple(array * 0 for array in block.attn1.processor.gate))
    assert np.abs(latents_of(request, made.loaded) - reference_latents(made, request)).max() > 20 * TOLERANCE
