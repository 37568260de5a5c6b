"""Check which expert runs in each step, and when guidance runs."""

import pytest

from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan, plan_steps, relative_step_costs
from backend.schemas.windows import step_calls
from presets import Preset, load_preset
from tests.parity.tiny_preset import find_also


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


@pytest.mark.parametrize("solver", ["rcm", "rcm-ode"])
@pytest.mark.parametrize(("steps", "experts"), [(4, [0, 0, 1, 1]), (3, [0, 0, 1]), (2, [0, 0]), (1, [0])])
def test_two_of_the_steps_of_rcm_are_above_the_boundary_of_image_to_video(solver, steps, experts, monkeypatch):
    facts = dict(name="few-steps", solver=solver, solvers=["rcm", "rcm-ode"], steps=4, max_steps=4, sigma_max=200.0)
    preset = Preset(**load_preset("wan2.2-i2v-a14b-720p").model_dump() | facts)
    find_also(monkeypatch, preset)
    request = GenerationRequest.from_preset(preset, prompt="x", image="/image.png", steps=steps, guidance=(1.0, 1.0))
    plan = plan_steps(request)
    assert [step.expert for step in plan] == experts and not any(step.is_guided for step in plan)
    assert [round(step.sigma, 6) for step in plan] == [0.995025, 0.933781, 0.852895, 0.608979][:steps]
    assert step_calls(request) == [1] * steps and relative_step_costs(request) == [1.0] * steps


def test_two_of_four_distilled_steps_are_above_the_boundary_of_image_to_video():
    plan = planned("wan2.2-i2v-a14b-720p", image="/image.png", steps=4, solver="euler-distilled", flow_shift=7.0)
    assert [round(step.sigma, 4) for step in plan] == [1, 0.9545, 0.875, 0.7]  # as ModelTC/LightX2V publishes
    assert [step.expert for step in plan] == [0, 0, 1, 1]
