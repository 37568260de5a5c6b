"""Check which expert runs in each step, and when guidance runs."""

import pytest

from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan, plan_steps
from presets import load_preset


def planned(name: str = "wan2.2-t2v-a14b-480p", boundary: float | None = None, **changes) -> list[StepPlan]:
    """The plan of six steps of a preset with two experts. The default timesteps are 999, 937, 856, 749, 599 and 375."""
    given = {"prompt": "x", "steps": 6, "solver": "unipc", "flow_shift": 3.0, "guidance": (4.0, 3.0)} | changes
    return plan_steps(GenerationRequest.from_preset(load_preset(name), **given), boundary)


def test_the_boundary_itself_belongs_to_the_first_expert():
    third = planned()[2].timestep
    for boundary, experts in ((third / 1000, [0, 0, 0, 1, 1, 1]), (third / 1000 + 1e-4, [0, 0, 1, 1, 1, 1])):
        assert [step.expert for step in planned(boundary=boundary)] == experts
    assert [step.guidance for step in planned(boundary=third / 1000)] == [4.0] * 3 + [3.0] * 3
    assert all(step.is_guided for step in planned())


def test_the_presets_boundary_counts_unless_the_checkpoint_has_its_own():
    timesteps = [step.timestep for step in planned()]
    assert [step.expert for step in planned()] == [int(timestep < 875) for timestep in timesteps]


def test_one_expert_does_all():
    assert {step.expert for step in planned("wan2.1-t2v-14b-720p", guidance=(5.0,))} == {0}


@pytest.mark.parametrize(
    ("guidance", "interval", "guided"),
    [
        ((4.0, 1.0), (0.0, 1.0), [1, 1, 1, 0, 0, 0]),
        ((1.0, 3.0), (0.0, 1.0), [0, 0, 0, 1, 1, 1]),
        ((4.0, 3.0), (0.0, 0.5), [1, 1, 1, 0, 0, 0]),
        ((4.0, 3.0), (0.2, 0.7), [0, 1, 1, 1, 0, 0]),
        ((4.0, 3.0), (0.5, 0.5), [0] * 6),
        ((0.5, 1.0), (0.0, 1.0), [0] * 6),
    ],
)
def test_guidance_runs_where_it_is_asked_for(guidance, interval, guided):
    plan = planned(boundary=0.8, guidance=guidance, guidance_interval=interval)
    assert [int(step.is_guided) for step in plan] == guided
