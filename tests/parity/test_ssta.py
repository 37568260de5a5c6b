"""A HunyuanVideo 1.5 with SSTA equals diffusers' pipeline with a plain PyTorch attention of the published formulas, float32."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from backend.pipeline import load as load_module
from tests.kept import kept
from tests.parity import test_hunyuan
from tests.parity.plain_ssta import SPARSE_CONFIG, PlainSsta
from tests.parity.test_hunyuan import LEAST_PSNR, PLAIN, QUOTES, Tiny, decode_reference, picture, psnr, run_reference
from tests.parity.tiny_hunyuan import KINDS, make_parts, make_preset, pipeline_of, write_checkpoint
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of

__all__ = ["picture"]

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

TOLERANCE = 1e-4  # the project's bar for sparse attention
KIND = KINDS[1]
TOKENS = (3, 4, 4)  # a video of 9 frames with 64 x 64 pixels has these numbers of tokens


@pytest.fixture(scope="module")
def sparse(tmp_path_factory, caches_in_a_folder_of_their_own) -> Iterator[Tiny]:
    """A tiny checkpoint with sparse attention."""
    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)
        parts = make_parts(KIND)
        folder = write_checkpoint(parts, tmp_path_factory.mktemp("ssta") / "model")
        path = folder / "transformer" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | SPARSE_CONFIG))
        preset = make_preset(KIND, folder)
        presets[preset.name] = preset
        loaded = load_module.load(preset, None, lambda event: None)
        yield Tiny(preset=preset, loaded=loaded, reference=pipeline_of(parts))


def sparse_reference(made: Tiny, request) -> np.ndarray:
    """Return the latents of diffusers' pipeline whose transformer computes SSTA."""
    blocks = made.reference.transformer.transformer_blocks
    usual = [block.attn.processor for block in blocks]
    for block in blocks:
        block.attn.set_processor(PlainSsta(TOKENS))
    latents = test_hunyuan._run_reference(made, request)
    for block, processor in zip(blocks, usual, strict=True):
        block.attn.set_processor(processor)
    return latents


@pytest.mark.parametrize(
    "guidance, negative, steps", [(1.0, "", 1), (1.0, "", 4), pytest.param(6.0, PLAIN, 2, marks=pytest.mark.slow)]
)
def test_latents_and_video_equal_the_formulas(guidance, negative, steps, sparse, picture):
    request = sparse.request(guidance=(guidance,), prompt=QUOTES, negative_prompt=negative, steps=steps, image=picture)
    ours = latents_of(request, sparse.loaded)
    expected = kept(lambda: sparse_reference(sparse, request), sparse.weights, request, SPARSE_CONFIG)
    assert np.abs(ours - expected).max() <= TOLERANCE
    assert psnr(video_of(request, sparse.loaded, ours), decode_reference(sparse, expected)) >= LEAST_PSNR
    assert np.abs(ours - run_reference(sparse, request)).max() > 20 * TOLERANCE  # dense attention gives other latents


def test_the_step_cache_runs_the_same_layers(sparse, picture):
    request = sparse.request(guidance=(1.0,), steps=2, image=picture)
    plain, cached = (latents_of(request.with_changes(step_cache=cache), sparse.loaded) for cache in (0.0, 1e-6))
    assert np.abs(plain - cached).max() <= TOLERANCE
