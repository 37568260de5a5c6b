"""Check guidance on the first steps only, and the negative prompt without guidance: settings and refusals."""

import re
from dataclasses import asdict

import pytest

from backend.errors import RequestError
from backend.sampling.solvers import make_schedule
from backend.schemas.guidance_steps import count_guided_steps
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.step_plan import plan_steps
from presets import list_presets, load_preset

FAST, TURBO = "wan2.2-t2v-a14b-480p-fast", "wan2.2-ti2v-5b-720p-turbo"


def asked(name: str = FAST, **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset(name), prompt="a fox", seed=1, **changes)


def guided(request: GenerationRequest) -> list[bool]:
    plan = plan_steps(request)
    return [step.is_guided for step in plan]


@pytest.mark.parametrize("name", [preset.name for preset in list_presets() if preset.first_guidance])
@pytest.mark.parametrize("count", range(5))
def test_exactly_the_first_steps_are_guided(name, count):
    extra = {"image": "/a.png"} if load_preset(name).tasks == ("i2v",) else {}
    request = asked(name, guided_steps=count, **extra)
    assert guided(request) == [index < count for index in range(4)]
    assert count_guided_steps(request.guidance, request.guidance_interval, 4) == count
    assert not any(guided(asked(name, **extra)))


@pytest.mark.parametrize("steps", [1, 3, 6, 7, 8, 13, 30, 50, 99, 100])
def test_any_number_of_steps_can_be_counted_in_per_cent(steps):
    for count in range(1, steps + 1):
        assert sum(guided(asked("wan-tiny", steps=steps, guided_steps=count))) == count


def test_its_strength_is_the_presets_or_ones_own():
    assert asked(guided_steps=1).guidance == (3.5, 3.5) and asked(guided_steps=1, guidance=(2.0, 1.0)).guidance == (2.0, 1.0)
    assert asked("wan-tiny", guided_steps=2).guidance == (4.0,) and asked("wan-tiny", guided_steps=0).guidance == (1.0,)
    assert asked(guided_steps="2", steps="4", guidance=["3", "1"]).guidance_interval == (0.0, 0.5)  # as a form sends them


def test_of_a_clip_the_first_steps_that_are_done_count():
    clip = {"video": "/clip.mp4", "strength": 0.5}
    assert guided(asked(guided_steps=1, **clip)) == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guided_steps": 5}, "guided_steps=5 must be between 0 and the 4 steps"),
        ({"guided_steps": -1}, "guided_steps=-1 must be between 0 and the 4 steps"),
        ({"guided_steps": "one"}, "guided_steps=one must be between"),
        ({"guided_steps": True}, "guided_steps=True must be between"),
        ({"guided_steps": 1, "guidance_interval": (0.0, 1.0)}, "together with guidance_interval, which means the same"),
        ({"guided_steps": 1, "guidance": "x"}, "guidance="),
        ({"guided_steps": 1, "guidance": 3.0}, "guidance="),
        ({"guided_steps": 1, "steps": "x"}, "steps="),
        ({"nag": 31}, "nag=31 must be between 0 and 30"),
        ({"nag": -1}, "nag=-1 must be between 0 and 30"),
        ({"nag": float("nan")}, "nag=nan must be between 0 and 30"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(changes, message):
    with pytest.raises(RequestError, match=re.escape(message)):
        asked(**changes)


def test_models_that_cannot_say_so():
    with pytest.raises(RequestError, match="^nag was given, and wan-tiny does not support it"):
        asked("wan-tiny", nag=11.0)
    with pytest.raises(RequestError, match="has no guidance of its own"):
        asked("wan-live-tiny", guided_steps=1)


def test_the_negative_prompt_is_read_without_guidance_if_nag_is_on():
    assert not asked().reads_negative_prompt and asked(nag=11.0).uses_nag and asked(nag=11.0).reads_negative_prompt
    assert not asked(nag=1.0).uses_nag and not asked(nag=11.0, negative_prompt=" ").uses_nag
    assert not asked(nag=11.0, guidance=(3.0, 3.0)).uses_nag  # guidance already uses it
    both = asked(nag=11.0, guided_steps=1)
    assert both.uses_nag and both.is_guided
    assert Shape.from_request(both).has_nag and not Shape.from_request(asked()).has_nag
    earlier = {name: value for name, value in asdict(Shape.from_request(asked())).items() if name != "has_nag"}
    assert Shape(**earlier) == Shape.from_request(asked())


def test_it_is_stored_only_where_it_is_used():
    assert "nag" not in asked().to_json()
    assert GenerationRequest.from_stored(asked(nag=7.5).to_json()).nag == 7.5


def test_the_turbo_preset_is_the_5b_in_four_steps():
    turbo, full = load_preset(TURBO), load_preset("wan2.2-ti2v-5b-720p")
    same = ("tasks", "takes", "width", "height", "num_frames", "fps", "architecture", "sizes", "negative_prompt", "flow_shift")
    assert all(getattr(turbo, name) == getattr(full, name) for name in same)
    schedule = make_schedule(turbo.solver, turbo.steps, turbo.flow_shift)
    warped = [1000 * 5 * share / (1 + 4 * share) for share in (1.0, 0.75, 0.5, 0.25)]
    assert schedule.timesteps == pytest.approx(warped, rel=1e-6) and turbo.guidance == (1.0,)
    assert "CC BY-NC-SA" in turbo.licence and "no commercial use" in turbo.licence
