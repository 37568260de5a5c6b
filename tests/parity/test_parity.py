"""Our pipeline equals diffusers: same checkpoint, prompt and seed, float32."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from backend.schemas.request import GenerationRequest
from tests.parity.conftest import PRESET, run_reference
from tests.parity.tiny_runs import latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar; the order of float32 sums alone leaves about 1e-5 after some steps
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar

CASES = [("t2v", "unipc", 4.0), ("i2v", "unipc", 1.0), ("i2v", "euler", 4.0)]  # each value of all three options occurs
MORE_CASES = [("t2v", "euler", 1.0), ("t2v", "unipc", 1.0), ("t2v", "euler", 4.0), ("i2v", "unipc", 4.0), ("i2v", "euler", 1.0)]


def make_request(task: str, solver: str, guidance: float, picture, **changes) -> GenerationRequest:
    image = {"image": str(picture)} if task == "i2v" else {}
    settings = dict(width=96, height=96, num_frames=17, steps=6, seed=11, negative_prompt="a white star") | changes
    return GenerationRequest.from_preset(
        PRESET,
        prompt="a large yellow circle drifts up and to the left over a navy background",
        solver=solver,
        guidance=(guidance,),
        **settings,
        **image,
    )


def psnr(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(-10 * np.log10(max(np.square(ours - reference).mean(), 1e-12)))


@pytest.mark.parametrize("task, solver, guidance", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_latents_and_video_equal_diffusers(task, solver, guidance, loaded, reference_pipeline, picture):
    request = make_request(task, solver, guidance, picture)
    ours = latents_of(request, loaded)
    reference, reference_video = run_reference(request, reference_pipeline)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert psnr(video_of(request, loaded, ours), reference_video) >= LEAST_PSNR


@pytest.mark.parametrize("changes", [{"width": 128, "num_frames": 5}, {"steps": 1}, {"steps": 20}, {"flow_shift": 8.0}])
def test_other_settings_equal_diffusers_too(changes, loaded, reference_pipeline, picture):
    request = make_request("t2v", "unipc", 4.0, picture, **changes)
    ours = latents_of(request, loaded)
    reference, _ = run_reference(request, reference_pipeline)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE


@pytest.mark.slow
def test_settings_do_something(loaded, picture):
    """Guidance, shift, negative prompt, seed and steps each change the video: the equality above is not an equality of
    constants.
    """
    base = make_request("t2v", "unipc", 4.0, picture, steps=3)
    latents = [latents_of(base, loaded)]
    for changes in ({"guidance": (1.0,)}, {"flow_shift": 1.0}, {"negative_prompt": "a blue square"}, {"seed": 12}, {"steps": 4}):
        latents.append(latents_of(base.with_changes(**changes), loaded))
    for first, second in itertools.combinations(latents, 2):
        assert np.abs(first - second).max() > 0.05


def test_the_same_request_gives_the_same_bits(loaded, picture):
    request = make_request("t2v", "unipc", 4.0, picture, steps=3)
    np.testing.assert_array_equal(latents_of(request, loaded), latents_of(request, loaded))
