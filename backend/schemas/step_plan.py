"""The plan of a video's steps: the noise level, the expert, the guidance, the size and the reuse of each step. The pipeline, the
programs to compile and all estimates read this plan. `backend.sampling.solvers` adds the solver's tables."""

import dataclasses
import math

import numpy as np

from backend.schemas.extension import Appended
from backend.schemas.mag_cache import REUSED_COST, reused_steps
from backend.schemas.noise_levels import NUM_TRAIN_TIMESTEPS, noise_levels, timesteps_of_levels
from backend.schemas.progressive import REFINING_LEVELS, TOKEN_COST_EXPONENT, num_half_size_steps, request_at_first_size
from backend.schemas.settings import VideoSettings

DENSE_PART = 5
"""With Sol-Attn, the first fifth of the steps is dense in presets that were trained with dense attention. Source:
arXiv:2607.24027, and the authors' settings in NVlabs/Sana: the first 10 of 50 steps are dense."""
SPARSE_COST = 0.6
"""Cost of a sparse step relative to a dense step, for estimates. check-tpu predicts 0.59 at level 1.5, for 14B on v6e:2x4.
Lower levels cost more."""
ZERO_SHARE = 0.04  # share of all steps that CFG-Zero* skips at the start, at least one step


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The plan of one step. The step starts at the noise level `sigma`; `timestep` is the model's input for it. `expert` is 1 for
    the low-noise expert. If `is_guided`, the step evaluates both guidance branches, with the factor `guidance`. If `is_small`, it
    runs at half of the video's size. If `reuses`, it runs no layers, but reuses their output from an earlier step (MagCache). If
    `is_sparse`, it runs with sparse attention (Sol-Attn), for which the model was not trained."""

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
        """Steps with equal keys share a step context."""
        return self.expert, self.is_guided, self.is_small, self.is_sparse


def plan_steps(request: VideoSettings, boundary: float | None = None) -> list[StepPlan]:
    """Plan the steps of one video, or of each block of a live video.

    The first expert runs while the timestep is at least `boundary` * 1000. `boundary` is the boundary of the loaded checkpoint;
    None means the preset's boundary. With the guidance interval (start, end), guidance runs from step int(start * steps) to step
    int(end * steps) - 1, if the expert's guidance or the audio's guidance is above 1.

    Source: `boundary_ratio` of diffusers' pipelines with two experts; diffusers' guiders (`BaseGuidance`) for the interval."""
    boundary = request.resolved_preset.boundary if boundary is None else boundary
    small, (sigmas, timesteps) = num_half_size_steps(request), _levels(request)
    dense = request.num_steps
    if request.sparse:  # a request that restyles a clip leaves out the first steps, so fewer dense steps remain
        dense = max(small, -(-request.steps // DENSE_PART) - (request.steps - request.num_steps))
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
    first_tokens = request_at_first_size(request).geometry().num_tokens
    full = (request.geometry().num_tokens / first_tokens) ** TOKEN_COST_EXPONENT
    return [
        (1.0 if step.is_small else full) * (REUSED_COST if step.reuses else SPARSE_COST if step.is_sparse else 1.0)
        for step in plan_steps(request)
    ]


def num_zero_steps(request: VideoSettings) -> int:
    """Return how many first steps CFG-Zero* skips. A restyled clip skips no step, because its first step has little noise.
    Source: Fan et al. 2025, arXiv:2503.18886, "CFG-Zero*"; its authors skip the first two of 50 steps."""
    return max(1, round(ZERO_SHARE * request.steps)) if request.cfg_zero and request.video is None else 0


def rescale_sigma(sigma: float, growth: float) -> float:
    """Return the noise level after noisy latents at `sigma` were enlarged. The noise level rises: each enlarged latent has a
    smaller share of the signal, but as much noise, because fresh noise fills the new frequencies. `growth` is the factor by which
    height and width have grown. Source: arXiv:2605.18736."""
    return growth * sigma / (1 + (growth - 1) * sigma)


def _levels(request: VideoSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return the noise level [N] float64 and the timestep [N] float32 before each step that runs. A request that restyles a clip
    runs only the last steps. If the preset `refines`, the refining steps follow. With progressive resolution, the first step at
    full size has the level of the enlarged latents. As in SGLang, later steps keep their levels."""
    refining = len(REFINING_LEVELS) if request.resolved_preset.refines else 0
    first = request_at_first_size(request)
    small = first.geometry()
    # Keyframes and control clips count as tokens, as in diffusers' `LTX2ConditionPipeline` and `LTX2InContextPipeline`.
    num_tokens = small.num_tokens + Appended.from_request(first).num_tokens
    sigma_max = request.resolved_preset.sigma_max
    levels = noise_levels(request.solver, request.steps - refining, request.flow_shift, num_tokens, sigma_max)
    levels = levels[request.steps - request.num_steps :]
    timesteps, num_small = timesteps_of_levels(request.solver, levels), num_half_size_steps(request)
    if refining:
        levels = np.append(levels, REFINING_LEVELS)
        timesteps = np.append(timesteps, timesteps_of_levels("euler", levels[-refining:]))
    elif num_small:
        full = request.geometry()
        # The geometric mean of the factors of height and width, which rounding can make unequal.
        growth = math.sqrt(full.latent_height * full.latent_width / (small.latent_height * small.latent_width))
        levels[num_small:] = levels[num_small:].astype(np.float32)
        levels[num_small] = rescale_sigma(float(levels[num_small]), growth)
        timesteps[num_small] = levels[num_small] * NUM_TRAIN_TIMESTEPS
    return levels, timesteps
