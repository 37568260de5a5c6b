"""The fresh noise of the samplers for one to four steps: drawn once a step, and again the same after an interruption."""

import pytest

from backend.pipeline import generate as pipeline
from backend.pipeline.warm_up import calls
from backend.runtime.program import Program
from backend.schemas.events import Step
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from tests.backend.pipeline.kills import assert_same_video, make_with_copies
from tests.parity.tiny_preset import find_also

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
NOISE = "fresh_noise"
PRESET = Preset(
    **load_preset("wan-tiny").model_dump()
    | dict(name="few-steps", solver="rcm", solvers=("rcm", "rcm-ode", "dmd"), steps=4, max_steps=4, guidance=(1.0,))
)
AFTER = {"rcm": [0.933781, 0.852895, 0.608979, 0], "dmd": [0.757, 0.522, 0], "rcm-ode": []}
"""The deviation of the noise after each step: the published level of the next step."""


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    find_also(monkeypatch, PRESET)


def a_request(solver: str, **changes) -> GenerationRequest:
    settings = {"prompt": "a red circle moving right on a black background", "seed": 1, "steps": len(AFTER[solver]) or 4}
    return GenerationRequest.from_preset(PRESET, solver=solver, **settings | changes)


@pytest.fixture
def drawn(monkeypatch) -> list[tuple[int, float]]:
    """The step and the deviation of each noise that is drawn."""
    found, call = [], Program.__call__

    def counted(self, *arguments):
        if self.key == NOISE:
            found.append((int(arguments[1].step), float(arguments[1].deviation)))
        return call(self, *arguments)

    monkeypatch.setattr(Program, "__call__", counted)
    return found


@pytest.mark.parametrize(("solver", "changes"), [("rcm", {}), ("dmd", {}), ("rcm", {"num_frames": 49})])
def test_a_resumed_video_draws_the_noise_of_an_uninterrupted_one(solver, changes, loaded, tmp_path, at_every_step, drawn):
    """49 frames are denoised in context windows, which share the noise of a step."""
    request = a_request(solver, **changes)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 2})
    expected = list(enumerate(AFTER[solver]))
    assert drawn == [(step, pytest.approx(deviation, abs=5e-7)) for step, deviation in expected]
    drawn.clear()
    events = list(pipeline.generate(request, loaded, killed, lambda: False))
    first = min(event.index for event in events if isinstance(event, Step))
    assert 0 < first < 3 and [step for step, _ in drawn] == list(range(first, request.steps))
    assert_same_video(whole, killed)


@pytest.mark.parametrize("solver", AFTER)
def test_the_noise_has_its_own_small_program(solver, loaded):
    keys = [call.program.key for call in calls(loaded.model, a_request(solver))]
    assert keys.count("denoise_step") == a_request(solver).steps and keys.count(NOISE) == len(AFTER[solver])
