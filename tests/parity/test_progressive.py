"""Progressive resolution of Wan equals a plain reference of its paper's steps, on tiny random checkpoints, float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image

from backend.media.pictures import crop_to
from backend.media.video import read_frames
from backend.pipeline import generate as pipeline_module
from backend.pipeline.stage_files import read_conditions
from backend.schemas.events import Cancelled, Finished, Step
from backend.schemas.progressive import num_half_size_steps
from backend.schemas.request import GenerationRequest
from tests.kept import kept
from tests.parity.tiny_runs import Tiny, finished, latents_of
from tests.parity.two_sizes import SPECTRUM, given_spectrum, progressive, reference

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar for whole videos


@pytest.fixture
def with_spectrum(monkeypatch) -> Callable[[Tiny], Tiny]:
    return lambda made: given_spectrum(made, monkeypatch)


def wan_reference(made: Tiny, request: GenerationRequest) -> np.ndarray:
    return kept(lambda: _wan_reference(made, request), made.weights, request, "progressive", SPECTRUM)


def _wan_reference(made: Tiny, request: GenerationRequest) -> np.ndarray:
    pipeline = made.reference
    if request.image and not isinstance(pipeline, WanImageToVideoPipeline):
        pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=pipeline.config.expand_timesteps)
        pipeline.set_progress_bar_config(disable=True)
    full = {name: Image.open(path).convert("RGB") for name in ("image", "last_image") if (path := getattr(request, name))}
    pictures, encode = list(full.values()), getattr(pipeline, "encode_image", None)
    second = {"guidance_scale_2": request.guidance[1]} if len(request.guidance) > 1 else {}

    def run(sized: GenerationRequest, scheduler: Any, latents: torch.Tensor) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "scheduler", scheduler)
            if full:  # the image encoder gets the pictures at their own size, as ours does
                own = pictures if len(pictures) > 1 else pictures[0]
                patch.setattr(pipeline, "encode_image", lambda image, *others: encode(own, *others))
            return pipeline(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt,
                height=sized.height,
                width=sized.width,
                num_frames=request.num_frames,
                num_inference_steps=request.steps,
                guidance_scale=request.guidance[0],
                latents=latents,
                output_type="latent",
                **second,
                **{name: crop_to(image, sized.width, sized.height) for name, image in full.items()},
            ).frames

    return reference(made, request, run, pipeline.scheduler)


@pytest.mark.parametrize(
    "family, given, level",
    [
        ("wan2.1-t2v", {}, 2),
        ("wan2.1-i2v", {"image": "image"}, 2),
        ("wan2.2-ti2v", {"image": "image"}, 3),
        ("wan2.2-t2v", {"width": 80, "height": 64}, 2),
        pytest.param("wan2.1-t2v", {"width": 96, "height": 80}, 4, marks=pytest.mark.slow),
        pytest.param("wan2.1-flf2v", {"image": "image", "last_image": "last_image"}, 2, marks=pytest.mark.slow),
        pytest.param("wan2.2-i2v", {"image": "image"}, 1, marks=pytest.mark.slow),
        pytest.param("wan2.2-ti2v", {}, 2, marks=pytest.mark.slow),
    ],
)
def test_wan_equals_the_papers_steps(family, given, level, tiny, pictures, with_spectrum):
    made = with_spectrum(tiny(family))
    request = progressive(made, level, **{name: pictures.get(value, value) for name, value in given.items()})
    ours = latents_of(request, made.loaded)
    assert ours.shape == made.loaded.model.latent_shape(request)
    assert np.abs(ours - wan_reference(made, request)).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("stop", [1, 4])
def test_a_denoising_continues_after_a_stop_in_either_size(stop, tiny, pictures, with_spectrum, tmp_path):
    """A resumed video has the same bits."""
    made = with_spectrum(tiny("wan2.1-i2v"))
    request = progressive(made, image=pictures["image"])
    assert 1 <= num_half_size_steps(request) < 4
    events = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    for event in events:
        if isinstance(event, Step) and event.index == stop:
            events.close()
    rest = list(pipeline_module.generate(request, made.loaded, tmp_path, lambda: False))
    assert isinstance(rest[-1], Finished) and 0 < sum(isinstance(event, Step) for event in rest) <= request.steps - stop
    whole, _ = finished(request, made.loaded)
    np.testing.assert_array_equal(latents_of(request, made.loaded, tmp_path), whole)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_video_that_is_stopped_has_its_full_size(stop, tiny, with_spectrum, tmp_path):
    """The size is full even before the first step at that size."""
    made, done = with_spectrum(tiny("wan2.1-t2v")), []
    request = progressive(made)
    for event in pipeline_module.generate(request, made.loaded, tmp_path, lambda: len(done) >= stop):
        if isinstance(event, Step):
            done.append(event.index)
            with Image.open(tmp_path / event.preview) as preview:
                assert preview.size == (request.width, request.height)
    assert isinstance(event, Cancelled)
    frames = list(read_frames(Path(tmp_path) / "video.mp4"))
    assert frames[0].shape == (request.height, request.width, 3) and len(frames) == request.num_frames


def test_it_is_told_how_many_steps_were_small(tiny, with_spectrum):
    made = with_spectrum(tiny("wan2.1-t2v"))
    request = progressive(made)
    _, result = finished(request, made.loaded)
    assert f"The first {num_half_size_steps(request)} of 6 steps ran at 32x32" in result.notes
    plain, _ = finished(request.with_changes(progressive=0), made.loaded)
    assert np.abs(plain - finished(request, made.loaded)[0]).max() > 0.1


def test_a_step_cache_begins_again_at_the_full_size(tiny, with_spectrum):
    """A step cache that never reuses a step changes nothing."""
    made = with_spectrum(tiny("wan2.1-t2v"))
    request = progressive(made)
    cached, _ = finished(request.with_changes(step_cache=1e-9), made.loaded)
    np.testing.assert_allclose(cached, finished(request, made.loaded)[0], rtol=0, atol=1e-4)


def test_a_picture_that_was_encoded_at_one_size_does_not_serve_two(tiny, pictures, with_spectrum, tmp_path):
    """The prompt is encoded once for the small and the full size."""
    made = with_spectrum(tiny("wan2.1-i2v"))
    plain = made.request(steps=6, image=pictures["image"])
    latents_of(plain, made.loaded, tmp_path)
    assert read_conditions(tmp_path, plain) is not None and read_conditions(tmp_path, plain.with_changes(progressive=2)) is None
    made, other = with_spectrum(tiny("wan2.1-t2v")), tmp_path / "other"
    other.mkdir()
    latents_of(made.request(steps=6), made.loaded, other)
    assert read_conditions(other, progressive(made)) is not None
