"""Check CFG-Zero*: which presets offer it, what it cannot be combined with, and which steps it skips."""

import pytest

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.step_plan import num_zero_steps
from backend.schemas.windows import step_calls
from presets import list_presets, load_preset
from tests.backend.conftest import request


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"guidance": (1.0,)}, "cfg_zero cannot be combined with guidance of 1 or less; give guidance above 1"),
        ({"step_cache": 0.1}, "cfg_zero cannot be combined with step_cache; set step_cache to 0"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(RequestError) as refused:
        request(cfg_zero=True, **changes)
    assert str(refused.value) == words


def test_a_video_in_windows_cannot_have_it():
    preset = load_preset("wan2.1-t2v-1.3b-480p")
    long = dict(prompt="x", num_frames=preset.max_frames, cfg_zero=True)
    with pytest.raises(RequestError, match="cannot be combined with context windows"):
        GenerationRequest.from_preset(preset, context_windows=True, **long)


@pytest.mark.parametrize("name", ["wan2.2-t2v-a14b-480p-fast", "ltx-2.0-512p", "wan-live-tiny"])
def test_it_is_not_offered_where_guidance_is_another(name):
    preset = load_preset(name)
    assert not preset.takes_cfg_zero
    with pytest.raises(RequestError, match=f"^cfg_zero was given, and {name} does not support it"):
        GenerationRequest.from_preset(preset, prompt="x", cfg_zero=True)


def test_every_guided_wan_and_hunyuanvideo_takes_it():
    taking = {preset.name for preset in list_presets() if preset.takes_cfg_zero}
    assert {"wan-tiny", "hunyuan-tiny", "wan2.2-t2v-a14b-720p", "hunyuanvideo-1.5-t2v-720p", "wan2.1-vace-14b-720p"} <= taking


@pytest.mark.parametrize(("steps", "count"), [(1, 1), (20, 1), (37, 1), (38, 2), (50, 2)])
def test_the_first_two_of_fifty_steps_are_left_out_and_one_at_least(steps, count):
    wanted = request(cfg_zero=True, steps=steps)
    assert num_zero_steps(wanted) == count and num_zero_steps(request(steps=steps)) == 0
    assert step_calls(wanted) == [0] * count + [1] * (steps - count)


def test_it_needs_programs_of_its_own():
    assert Shape.from_request(request(cfg_zero=True)) != Shape.from_request(request())
