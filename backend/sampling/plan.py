"""The step plan of a video: the solver's tables and, for each step, the expert, the guidance, the size and the reuse."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from backend.sampling.solvers import NUM_TRAIN_TIMESTEPS, Schedule, schedule_for_request
from backend.schemas.mag_cache import reused_steps
from backend.schemas.progressive import is_half_size_step
from backend.schemas.request import GenerationRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The plan of one step.

    Attributes:
        expert: 0 for the high-noise expert or a single transformer, 1 for the low-noise expert.
        guidance: the guidance factor, ignored unless `is_guided`.
        is_guided: the step evaluates both guidance branches.
        is_small: the step runs at half of the video's size.
        reuses: the step runs no layers. It reuses the output of all layers from an earlier step (MagCache).
    """

    expert: int
    guidance: float
    is_guided: bool
    is_small: bool = False
    reuses: bool = False

    @property
    def context_key(self) -> tuple[int, bool, bool]:
        """The key of the step context. Steps with equal keys share a context."""
        return self.expert, self.is_guided, self.is_small


def plan_steps(
    timesteps: Sequence[float] | np.ndarray,
    guidance: Sequence[float],
    boundary: float | None,
    interval: tuple[float, float],
    sound_guidance: float | None = None,
) -> list[StepPlan]:
    """Plan the expert and the guidance of each step.

    The first expert runs while the timestep is at least `boundary` * 1000. With `interval` = (start, end), guidance runs from
    step int(start * steps) to step int(end * steps) - 1, if the expert's guidance or the audio's guidance is above 1.

    Source: `boundary_ratio` of diffusers' pipelines with two experts; diffusers' guiders (`BaseGuidance`) for the interval.
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
    """The solver's tables and the step plans of one video, or of each block of a live video."""

    schedule: Schedule
    steps: list[StepPlan]


def plan_for_request(request: GenerationRequest, boundary: float | None) -> Plan:
    """Plan the steps of a request. Running, compiling ahead and estimating all use this plan.

    `boundary` is the noise level at which the model's second expert takes over, None for one transformer.
    """
    schedule = schedule_for_request(request)
    guidance = request.guidance, boundary, request.guidance_interval, request.sound_guidance
    steps = plan_steps(schedule.timesteps, *guidance)
    sized = [dataclasses.replace(step, is_small=is_half_size_step(request, index)) for index, step in enumerate(steps)]
    reuses = reused_steps(request, [step.context_key[:2] for step in sized])
    steps = [dataclasses.replace(step, reuses=one) for step, one in zip(sized, reuses, strict=True)]
    return Plan(schedule=schedule, steps=steps)
