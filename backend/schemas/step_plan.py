"""The plan of a video's steps: the noise level, the expert, the guidance, the size and the reuse of each step.

The pipeline, the programs to compile and all estimates read this plan. `backend.sampling.solvers` adds the solver's tables.
"""

import dataclasses
import math

import numpy as np

from backend.schemas.extension import Appended
from backend.schemas.mag_cache import REUSED_COST, reused_steps
from backend.schemas.noise_levels import NUM_TRAIN_TIMESTEPS, noise_levels, timesteps_of_levels
from backend.schemas.progressive import REFINING_LEVELS, full_size_cost, num_half_size_steps, request_at_first_size
from backend.schemas.settings import VideoSettings
from backend.schemas.sparse_steps import SPARSE_COST, num_dense_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The plan of one step.

    Attributes:
        sigma: the noise level before the step.
        timestep: the model's input for this noise level.
        expert: 0 for the high-noise expert or a single transformer, 1 for the low-noise expert.
        guidance: the guidance factor, ignored unless `is_guided`.
        is_guided: the step evaluates both guidance branches.
        is_small: the step runs at half of the video's size.
        reuses: the step runs no layers. It reuses the output of all layers from an earlier step (MagCache).
        is_sparse: the step runs with sparse attention (Sol-Attn), for which the model was not trained.
    """

    sigma: float
    timestep: float
    expert: int
    guidance: float
    is_guided: bool
    is_small: bool = False
    reuses: bool = False
    is_sparse: bool = False

    @property
    def context_key(self) -> tuple[int, bool, bool, bool]:
        """The key of the step context. Steps with equal keys share a context."""
        return self.expert, self.is_guided, self.is_small, self.is_sparse


def plan_steps(request: VideoSettings, boundary: float | None = None) -> list[StepPlan]:
    """Plan the steps of one video, or of each block of a live video.

    The first expert runs while the timestep is at least `boundary` * 1000. `boundary` is the boundary of the loaded checkpoint;
    None means the preset's boundary. With the guidance interval (start, end), guidance runs from step int(start * steps) to step
    int(end * steps) - 1, if the expert's guidance or the audio's guidance is above 1.

    Source: `boundary_ratio` of diffusers' pipelines with two experts; diffusers' guiders (`BaseGuidance`) for the interval.
    """
    boundary = request.resolved_preset.boundary if boundary is None else boundary
    small, (sigmas, timesteps) = num_half_size_steps(request), _levels(request)
    dense = max(small, num_dense_steps(request))
    first, last = (int(share * len(sigmas)) for share in request.guidance_interval)
    steps = []
    for index, (sigma, timestep) in enumerate(zip(sigmas.tolist(), timesteps.tolist(), strict=True)):
        expert = int(boundary is not None and timestep < boundary * NUM_TRAIN_TIMESTEPS)
        guidance = request.guidance[expert]
        step = StepPlan(
            sigma=sigma,
            timestep=timestep,
            expert=expert,
            guidance=guidance,
            is_guided=max(guidance, request.sound_guidance or 0) > 1 and first <= index < last,
            is_small=index < small,
            is_sparse=index >= dense,
        )
        steps.append(step)
    reuses = reused_steps(request, [(step.expert, step.is_guided) for step in steps])
    return [dataclasses.replace(step, reuses=True) if reused else step for step, reused in zip(steps, reuses, strict=True)]


def relative_step_costs(request: VideoSettings) -> list[float]:
    """Estimate each step's cost relative to a dense step without reuse at the size of the first step."""
    full = full_size_cost(request)
    return [
        (1.0 if step.is_small else full) * (REUSED_COST if step.reuses else SPARSE_COST if step.is_sparse else 1.0)
        for step in plan_steps(request)
    ]


def rescale_sigma(sigma: float, growth: float) -> float:
    """Return the noise level after noisy latents at `sigma` were enlarged.

    The noise level rises. Each enlarged latent has a smaller share of the signal, but as much noise as before, because fresh
    noise fills the new frequencies. `growth` is the factor by which height and width have grown. Source: arXiv:2605.18736.
    """
    return growth * sigma / (1 + (growth - 1) * sigma)


def _levels(request: VideoSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return the noise level [N] float64 and the timestep [N] float32 before each step that runs.

    A request that restyles a clip runs only the last steps. If the preset `refines`, the refining steps follow. With progressive
    resolution, the first step at full size has the level of the enlarged latents. As in SGLang, later steps keep their levels.
    """
    refining = len(REFINING_LEVELS) if request.resolved_preset.refines else 0
    steps = request.steps - refining
    sigma_max = request.resolved_preset.sigma_max
    levels = noise_levels(request.solver, steps, request.flow_shift, _count_tokens(request), sigma_max)
    levels = levels[request.steps - request.num_steps :]
    timesteps, small = timesteps_of_levels(request.solver, levels), num_half_size_steps(request)
    if refining:
        levels = np.append(levels, REFINING_LEVELS)
        timesteps = np.append(timesteps, timesteps_of_levels("euler", levels[-refining:]))
    elif small:
        levels[small:] = levels[small:].astype(np.float32)
        levels[small] = rescale_sigma(float(levels[small]), _size_growth(request))
        timesteps[small] = levels[small] * NUM_TRAIN_TIMESTEPS
    return levels, timesteps


def _count_tokens(request: VideoSettings) -> int:
    """Return the number of tokens of the first step, from which the solver "ltx" computes its noise levels.

    Keyframes and control clips count as tokens, as in diffusers' `LTX2ConditionPipeline` and `LTX2InContextPipeline`.
    """
    sized = request_at_first_size(request)
    return sized.geometry().num_tokens + Appended.from_request(sized).num_tokens


def _size_growth(request: VideoSettings) -> float:
    """Return the factor by which the sides of the full-size latents are longer than the sides of the first step's latents.

    This is the geometric mean of the factors of height and width, which rounding can make unequal.
    """
    full, small = request.geometry(), request_at_first_size(request).geometry()
    return math.sqrt(full.latent_height * full.latent_width / (small.latent_height * small.latent_width))
