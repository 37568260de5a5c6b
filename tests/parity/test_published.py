"""A second oracle: the pixels that diffusers publishes in its own tests of the Wan pipelines, against diffusers and against us.

With embeddings of zero they say nothing of the prompt or of guidance; of seed, solver, steps, pictures, experts and VAE they do.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from backend.models.wan import conditions, model, text_encoder
from backend.pipeline import load as load_module
from backend.schemas.request import GenerationRequest
from tests.parity.published import (
    GUIDANCE,
    NUM_FRAMES,
    PUBLISHED,
    SEED,
    STEPS,
    TEXT_POSITIONS,
    make_pipeline,
    make_published_preset,
)
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

PROMPTS = {"prompt": "dance monkey", "negative_prompt": "negative"}


OFTEN = ("TestWanPipeline", "TestWanFLFToVideoPipeline", "TestWan22ImageToVideoPipeline", "TestWan225BImageToVideoPipeline")
"""Each kind of picture, with one expert and with two. The other classes are among the slow tests."""


@pytest.fixture(params=[name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED])
def case(request):
    return PUBLISHED[request.param]


def ends(video: np.ndarray) -> np.ndarray:
    """Return the first and the last eight pixels of a video [frames, 3, height, width]."""
    flat = video.ravel()
    return np.concatenate([flat[:8], flat[-8:]])


def black(size: int) -> Image.Image:
    return Image.new("RGB", (size, size))


def test_diffusers_still_gives_what_it_publishes(case):
    """The models are rebuilt correctly, and the prompt's embeddings do not matter."""
    images = {name: black(case.size) for name in case.pictures}
    video = make_pipeline(case)(
        **PROMPTS,
        **images,
        height=case.size,
        width=case.size,
        num_frames=NUM_FRAMES,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        max_sequence_length=TEXT_POSITIONS,
        generator=torch.Generator().manual_seed(SEED),
        output_type="np",
    ).frames[0]
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), case.pixels, atol=case.tolerance)


def test_we_give_what_diffusers_publishes(case, tmp_path, monkeypatch):
    pipeline = make_pipeline(case)
    pipeline.save_pretrained(tmp_path / "model")
    preset = make_published_preset(case, tmp_path / "model")
    for module in (text_encoder, conditions, model):
        monkeypatch.setattr(module, "TEXT_TOKENS", TEXT_POSITIONS)
    monkeypatch.setattr(model, "text_lengths", lambda platform: (TEXT_POSITIONS,))
    find_also(monkeypatch, preset)
    loaded = load_module.load(preset, None, lambda event: None)
    images = {name: str(tmp_path / f"{name}.png") for name in case.pictures}
    for path in images.values():
        black(case.size).save(path)
    request = GenerationRequest.from_preset(preset, **PROMPTS, **images, seed=SEED)
    video = video_of(request, loaded, latents_of(request, loaded))
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), case.pixels, atol=case.tolerance)
