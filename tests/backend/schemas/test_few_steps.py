"""Check what presets with samplers for one to four steps offer and refuse."""

from collections.abc import Callable

import pytest

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest, check_current_limits
from backend.schemas.step_plan import plan_steps
from presets import Preset, load_preset
from tests.parity.tiny_preset import find_also

SPECTRUM = {"latent_spectrum": (0.864, 0.338)}


@pytest.fixture
def make_preset(monkeypatch) -> Callable[..., Preset]:
    """A factory of wan-tiny's preset with the given samplers. Requests find the preset by name."""

    def make(*solvers: str, steps: int = 4, **facts: object) -> Preset:
        own = dict(name="few-steps", solver=solvers[0], solvers=solvers, steps=steps, max_steps=steps, guidance=(1.0,)) | SPECTRUM
        preset = Preset(**load_preset("wan-tiny").model_dump() | own | facts)
        find_also(monkeypatch, preset)
        return preset

    return make


def refusal(preset: Preset, **changes: object) -> str:
    with pytest.raises(RequestError) as refused:
        GenerationRequest.from_preset(preset, **{"prompt": "a red circle", "seed": 1} | changes)
    return str(refused.value)


def test_more_steps_than_levels_are_refused_in_one_sentence(make_preset):
    assert refusal(make_preset("rcm"), steps=5) == "steps=5 must be between 1 and 4; 4 is usual"
    assert refusal(make_preset("dmd", steps=3), steps=4) == "steps=4 must be between 1 and 3; 3 is usual"
    both = make_preset("rcm", "dmd")
    assert refusal(both, solver="dmd") == "steps=4 must be between 1 and 3 for the solver dmd; 3 is usual"
    assert refusal(make_preset("rcm", "unipc", max_steps=50), steps=20) == (
        "steps=20 must be between 1 and 4 for the solver rcm; 4 is usual"
    )


def test_stored_values_that_no_preset_allows_are_refused_before_they_are_planned(make_preset):
    request = GenerationRequest.from_preset(make_preset("rcm"), prompt="a red circle", seed=1)
    assert GenerationRequest.from_stored(request.to_json()) == request
    check_current_limits(request)
    with pytest.raises(RequestError, match="steps=9 must be between 1 and 4 for the solver rcm"):
        GenerationRequest.from_stored(request.to_json() | {"steps": 9})


@pytest.mark.parametrize("solver", ["rcm", "rcm-ode", "dmd"])
def test_the_flow_shift_does_not_change_the_levels(solver, make_preset):
    presets = [make_preset(solver, steps=3, name=f"few-steps-{shift}", flow_shift=shift) for shift in (1.0, 9.0)]
    plans = [plan_steps(GenerationRequest.from_preset(preset, prompt="x", seed=1)) for preset in presets]
    assert plans[0] == plans[1] and len(plans[0]) == 3
    assert refusal(presets[0], flow_shift=9.0) == "flow_shift was given, and few-steps-1.0 does not support it; leave it out"


def test_a_restyled_clip_takes_the_last_levels(make_preset):
    given = dict(prompt="x", seed=1, video="/clip.mp4", trim=(0.0, 1.0625), strength=0.5)
    plan = plan_steps(GenerationRequest.from_preset(make_preset("rcm"), **given))
    assert [round(step.sigma, 6) for step in plan] == [0.852895, 0.608979]


def test_progressive_resolution_and_mag_cache_are_refused_in_one_sentence(make_preset):
    assert refusal(make_preset("rcm"), progressive=2) == "progressive was given, and few-steps does not support it; leave it out"
    mixed = make_preset("rcm", "unipc", max_steps=50)
    assert refusal(mixed, progressive=2) == "progressive cannot be combined with the solver rcm; leave it out"
    assert refusal(mixed, mag_cache=0.1).startswith("mag_cache was given, and few-steps does not support it")
    plain = GenerationRequest.from_preset(mixed, prompt="x", seed=1, solver="unipc", steps=20, progressive=2)
    assert any(step.is_small for step in plan_steps(plain))
