"""LTX-2 equals diffusers' picture and sound: tiny random checkpoints in the real layout, same prompt, picture and seed,
float32.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from backend.pipeline import generate as pipeline_module
from backend.schemas.events import Finished, Step
from tests.parity.ltx_runs import (
    ALL,
    ANCESTRAL,
    DISTILLED,
    LATENT_TOLERANCE,
    LEAST_PSNR,
    LEAST_SNR,
    OFF,
    decoded,
    finished,
    run_reference,
)
from tests.parity.tiny_ltx import KINDS, SIDE
from tests.parity.tiny_runs import video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    """A picture of the video's size, so that nothing is resized."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pixels = np.stack([4 * rows, 255 - 3 * columns, (rows * columns) % 256], -1).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "first.png"
    Image.fromarray(pixels).save(path)
    return str(path)


CASES = [(KINDS[0], {}, 2), (KINDS[1], ALL, 2), (KINDS[2], ANCESTRAL, 8)]
MORE_CASES = [
    (KINDS[1], OFF, 2),
    (KINDS[2], ALL, 2),
    (KINDS[1], DISTILLED, 8),
    (KINDS[2], ALL, 8),
    (KINDS[2], DISTILLED, 1),  # with one step "ltx" divides 0 by 0 in diffusers
    (KINDS[2], DISTILLED, 2),
    (KINDS[2], DISTILLED, 8),
    (KINDS[2], ANCESTRAL, 1),
    (KINDS[2], ANCESTRAL, 2),
    (KINDS[0], dict(guidance=(1.0,), sound_guidance=5.0), 2),
    (KINDS[0], ALL, 8),
    (KINDS[1], ALL, 8),
    (KINDS[1], dict(ALL, guidance=(1.0,), sound_guidance=1.0), 2),
]


@pytest.mark.parametrize("kind, changes, steps", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_picture_and_sound_equal_diffusers(tiny_ltx, kind, changes, steps):
    made = tiny_ltx(kind)
    request = made.request(steps=steps, **changes)
    video, sound, _ = finished(made, request)
    expected = run_reference(made, request)
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE


PICTURE_CASES = [(KINDS[1], OFF, 2), (KINDS[2], ALL, 2)]
MORE_PICTURE_CASES = [
    (KINDS[0], OFF, 2),
    (KINDS[2], OFF, 2),
    (KINDS[2], ANCESTRAL, 8),
    (KINDS[2], ALL, 8),
    (KINDS[2], DISTILLED, 8),
    (KINDS[2], ANCESTRAL, 1),
]


@pytest.mark.parametrize(
    "kind, changes, steps", PICTURE_CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_PICTURE_CASES]
)
def test_a_picture_is_the_first_frame(tiny_ltx, picture, kind, changes, steps):
    made = tiny_ltx(kind)
    request = made.request(steps=steps, image=picture, **changes)
    video, sound, _ = finished(made, request)
    expected = run_reference(made, request)
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_ancestral_steps_go_on_after_a_stop_and_end_the_same(tiny_ltx, tmp_path, stop):
    """The bits are the same, although each step's noise is drawn again."""
    made = tiny_ltx(KINDS[2])
    request = made.request(steps=8, **ANCESTRAL)
    events = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    for event in events:
        if isinstance(event, Step) and event.index == stop:
            events.close()
    rest = list(pipeline_module.generate(request, made.loaded, tmp_path, lambda: False))
    assert [event.index for event in rest if isinstance(event, Step)][-1] == 8 and isinstance(rest[-1], Finished)
    assert 0 < sum(isinstance(event, Step) for event in rest) <= 8 - stop
    latents, (video, sound, _) = load_file(tmp_path / "stage2_latents.safetensors"), finished(made, request)
    np.testing.assert_array_equal(latents["latents"], video)
    np.testing.assert_array_equal(latents["sound.latents"], sound)


@pytest.mark.parametrize("kind", [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow), KINDS[2]])
def test_latents_become_diffusers_pixels_and_waveform(tiny_ltx, kind):
    made = tiny_ltx(kind)
    request = made.request(steps=2, **OFF)
    video, sound, waveform = finished(made, request)
    pixels, expected = decoded(made, video, sound)
    error = np.square(video_of(request, made.loaded, video).clip(0, 1) - pixels).mean()
    assert -10 * np.log10(max(error, 1e-12)) >= LEAST_PSNR
    noise = np.square(waveform - expected[:, : waveform.shape[1]]).mean()
    assert 10 * np.log10(np.square(expected).mean() / max(noise, 1e-12)) >= LEAST_SNR
