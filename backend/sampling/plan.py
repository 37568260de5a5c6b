"""Plans the steps of a video: the solver's tables, which expert works in each step, and whether guidance runs."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from backend.sampling.solvers import NUM_TRAIN_TIMESTEPS, Schedule, schedule_of
from backend.schemas.mag_cache import reused_steps
from backend.schemas.progressive import is_half_size_step
from backend.schemas.request import GenerationRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan:
    """`expert` 0 is the only one or the high-noise one, 1 the low-noise one; `guidance` is used if `is_guided`; one that
    `is_small` works at half of the video's size, and those after it at all of it; one that `reuses` what the layers added in the
    step before runs none of them."""

    expert: int
    guidance: float
    is_guided: bool
    is_small: bool = False
    reuses: bool = False

    @property
    def context_key(self) -> tuple[int, bool, bool]:
        """The same for all steps that share what a model makes before the first of them."""
        return self.expert, self.is_guided, self.is_small


def plan_steps(
    timesteps: Sequence[float] | np.ndarray,
    guidance: Sequence[float],
    boundary: float | None,
    interval: tuple[float, float],
    sound_guidance: float | None = None,
) -> list[StepPlan]:
    """One entry a step. The first expert works while the timestep is at least `boundary` * 1000; guidance runs from step
    int(start * steps) up to, not including, step int(end * steps), if the expert's own guidance or the sound's is above 1.

    Source: `boundary_ratio` of diffusers' pipelines with two experts, its guiders (`BaseGuidance`) for the interval.
    """
    first, last = (int(share * len(timesteps)) for share in interval)
    experts = [int(boundary is not None and timestep < boundary * NUM_TRAIN_TIMESTEPS) for timestep in timesteps]
    return [
        StepPlan(
            expert=expert,
            guidance=guidance[expert],
            is_guided=max(guidance[expert], sound_guidance or 0) > 1 and first <= index < last,
        )
        for index, expert in enumerate(experts)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps of one video, or of each of its blocks: the solver's tables, and what each step does."""

    schedule: Schedule
    steps: list[StepPlan]


def plan_of(request: GenerationRequest, boundary: float | None) -> Plan:
    """The plan of this request, by which steps are run, compiled ahead and counted; `boundary` is the model's."""
    schedule = schedule_of(request)
    guidance = request.guidance, boundary, request.guidance_interval, request.sound_guidance
    steps = plan_steps(schedule.timesteps, *guidance)
    sized = [dataclasses.replace(step, is_small=is_half_size_step(request, index)) for index, step in enumerate(steps)]
    reuses = reused_steps(request, [step.context_key[:2] for step in sized])
    steps = [dataclasses.replace(step, reuses=one) for step, one in zip(sized, reuses, strict=True)]
    return Plan(schedule=schedule, steps=steps)
