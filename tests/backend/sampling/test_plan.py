"""Check which expert runs in each step, and when guidance runs."""

import pytest

from backend.sampling.plan import plan_steps

TIMESTEPS = [1000.0, 937.5, 875.0, 874.9, 500.0, 100.0]


def test_the_boundary_itself_belongs_to_the_first_expert():
    plan = plan_steps(TIMESTEPS, (4.0, 3.0), 0.875, (0.0, 1.0))
    assert [step.expert for step in plan] == [0, 0, 0, 1, 1, 1]
    assert [step.guidance for step in plan] == [4.0] * 3 + [3.0] * 3 and all(step.is_guided for step in plan)


def test_one_expert_does_all():
    assert {step.expert for step in plan_steps(TIMESTEPS, (5.0,), None, (0.0, 1.0))} == {0}


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
    assert [int(step.is_guided) for step in plan_steps(TIMESTEPS, guidance, 0.875, interval)] == guided
