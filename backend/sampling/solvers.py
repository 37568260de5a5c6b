"""Flow solvers as tables of linear coefficients, computed once in float64.

In all solvers, the next sample is a linear combination of the current sample, the clean estimates of the last steps, and the
corrected sample of the previous step. The coefficients do not depend on the video. Therefore the tables are computed before the
loop, and all steps share one small program.

Solvers and their sources:

- "unipc": UniPC, Zhao et al. 2023, in the form "bh2", B(h) = exp(-h) - 1, with order 2, as diffusers' `UniPCMultistepScheduler`
  runs it for flow models (flow prediction, flow sigmas, `lower_order_final`).
- "euler": as diffusers' `FlowMatchEulerDiscreteScheduler`.
- "euler-distilled": Euler on sigmas 1, (n-1)/n, ... 1/n before the shift, for n steps. Step-distilled LoRAs were trained on these
  steps (ModelTC/LightX2V, denoising_step_list [1000, 750, 500, 250] with sample_shift 5).
- "lcm": the noise levels of "euler-distilled", but the timesteps before the shift are rounded down to whole numbers (three
  steps: 1000, 666, 333). A step adds fresh noise to the clean estimate, as diffusers' `FlowMatchLCMScheduler` does. The model
  adds the noise. Only for models that were trained with this solver.
- "ltx": Euler as LTX-2's pipelines run it. The shift is the request's shift times a factor that grows with the number of tokens.
  The last noise level is 0.1.
- "ltx-distilled": Euler on the eight noise levels that LTX-2's distilled models were trained on, or on fewer of them.
- "ltx-ancestral": the noise levels of "ltx-distilled". A step denoises to a lower level than the next step needs, then adds fresh
  noise, as in diffusers' `LTXEulerAncestralRFScheduler` with eta 1. The model adds the noise. `Schedule.noise` has the standard
  deviations.
- "rcm": the sampler of models distilled by rCM, for one to four steps. The ratios of noise to signal before the steps are
  `sigma_max`, tan 1.5, tan 1.4 and tan 1. A step adds fresh noise to the clean estimate. The model adds the noise as for
  "ltx-ancestral". Source: thu-ml/TurboDiffusion, commit aaecff54, the scripts in `turbodiffusion/inference`.
- "rcm-ode": Euler on the noise levels of "rcm". Source: the option `--ode` of the same scripts.
- "dmd": like "rcm", with the noise levels 1, 0.757 and 0.522, for models that hao-ai-lab/FastVideo distilled by distribution
  matching (DMD). Source: FastVideo, commit 2f3d4074, `DmdDenoisingStage` with the timesteps 1000, 757 and 522.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from backend.schemas.noise_levels import NUM_TRAIN_TIMESTEPS, SIGMA_MAX, noise_levels, timesteps_of_levels
from backend.schemas.progressive import num_half_size_steps
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from presets.loader import Solver

ADDS_NOISE: tuple[Solver, ...] = ("ltx-ancestral", "rcm", "dmd")  # solvers whose schedule has `noise`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The solver's tables for N steps.

    Attributes:
        sigmas: [N + 1] float32, the noise level before each step, and 0 at the end.
        timesteps: [N] float32, the noise levels in the form that the model reads.
        corrector: [N, 5] float32, the weights of each step's first linear combination, see `take_step`.
        predictor: [N, 3] float32, the weights of each step's second linear combination.
        noise: [N] float32, the standard deviation of the fresh noise that the model adds after a step. None for solvers that are
            not in `ADDS_NOISE`.
        enlarged_at: the noise level at which noisy latents are enlarged, None if no noisy latents are enlarged.
        start_scale: the factor by which noise is multiplied to start a video from noise alone.
    """

    sigmas: np.ndarray
    timesteps: np.ndarray
    corrector: np.ndarray
    predictor: np.ndarray
    noise: np.ndarray | None = None
    enlarged_at: float | None = None
    start_scale: float = 1.0

    @property
    def steps(self) -> int:
        return len(self.timesteps)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerState:
    """The arrays that one step passes to the next, float32 in the shape of the latents.

    Attributes:
        sample: the noisy latents that the model sees next.
        before: the corrected sample from which the last prediction started.
        clean, older: the clean estimates of the last step and of the step before it.
    """

    sample: jax.Array
    before: jax.Array
    clean: jax.Array
    older: jax.Array


def start_state(noise: jax.Array) -> SamplerState:
    """Return the state before the first step. All arrays except `sample` are zero, because the first step does not use them."""
    before, clean, older = (jnp.zeros_like(noise) for _ in range(3))
    return SamplerState(sample=noise, before=before, clean=clean, older=older)


def add_noise(clean: jax.Array, noise: jax.Array, sigma: float | np.floating) -> jax.Array:
    """Add noise to clean latents: (1 - sigma) clean + sigma noise. Source: `add_noise` of diffusers' flow schedulers."""
    return (1 - sigma) * clean + sigma * noise


def take_step(
    state: SamplerState, velocity: jax.Array, sigma: jax.Array, corrector: jax.Array, predictor: jax.Array
) -> SamplerState:
    """Take one step. `velocity` (noise - data) is the model's output for `state.sample`.

    `sigma` is a scalar. `corrector` and `predictor` are this step's rows of the schedule. Let new = sample - sigma * velocity.
    The other names are the fields of `state`, and "." is the dot product:

        corrected = corrector . (sample, before, new, clean, older)
        next sample = predictor . (corrected, new, clean)
    """
    new_clean = state.sample - sigma * velocity
    corrected = (
        corrector[0] * state.sample
        + corrector[1] * state.before
        + corrector[2] * new_clean
        + corrector[3] * state.clean
        + corrector[4] * state.older
    )
    sample = predictor[0] * corrected + predictor[1] * new_clean + predictor[2] * state.clean
    return SamplerState(sample=sample, before=corrected, clean=new_clean, older=state.clean)


def make_schedule(
    solver: Solver, steps: int, flow_shift: float, last: int | None = None, num_tokens: int = 0, sigma_max: float = SIGMA_MAX
) -> Schedule:
    """Compute the tables of `steps` steps, or only of the final `last` steps, which start without earlier estimates. See
    `noise_levels` for `num_tokens` and `sigma_max`.

    Raises: ValueError for an unknown solver. Source of `last`: diffusers' video-to-video pipelines, `get_timesteps`.
    """
    levels = noise_levels(solver, steps, flow_shift, num_tokens, sigma_max)[0 if last is None else steps - last :]
    return _compute_tables(solver, levels, timesteps_of_levels(solver, levels))


def schedule_for_request(request: GenerationRequest) -> Schedule:
    """Compute the tables for all steps of the request.

    If the preset `refines`, the last steps are plain Euler steps, which refine enlarged latents. Source: Lightricks/LTX-2,
    `ltx_pipelines/distilled.py`. With progressive resolution, the solver restarts with the first step at full size, at the noise
    level of the enlarged latents.
    """
    solver, small, plan = request.solver, num_half_size_steps(request), plan_steps(request)
    sigmas, timesteps = np.array([step.sigma for step in plan]), np.array([step.timestep for step in plan])
    if request.resolved_preset.refines:
        first = _compute_tables(solver, sigmas[:small], timesteps[:small])
        return _join_schedules(first, _euler_schedule(np.append(sigmas[small:], 0.0)), small)
    if not small:
        return _compute_tables(solver, sigmas, timesteps)
    plain = make_schedule(solver, request.steps, request.flow_shift)
    later = _compute_tables(solver, sigmas[small:], timesteps[small:])
    return dataclasses.replace(_join_schedules(plain, later, small), enlarged_at=float(plain.sigmas[small]))


def _compute_tables(solver: Solver, levels: np.ndarray, timesteps: np.ndarray) -> Schedule:
    """Compute the tables of a solver that starts without earlier estimates at the first of these noise levels."""
    sigmas = np.append(levels, 0.0)
    if solver == "unipc":
        sigmas, steps = sigmas.astype(np.float32).astype(np.float64), len(timesteps)
        corrector = np.stack([_corrector_weights(sigmas, step) for step in range(steps)])
        predictor = np.stack([_predictor_weights(sigmas, step, order=min(2, step + 1, steps - step)) for step in range(steps)])
        return _make_schedule(sigmas, timesteps, corrector, predictor)
    now, following = sigmas[:-1], sigmas[1:]
    schedule, zeros = _euler_schedule(sigmas), np.zeros(len(now))
    if solver == "ltx-ancestral":
        # A step from the noise level s to s' denoises to the level s'^2 / s, which is below s'. Then it scales the sample so that
        # the signal has the weight 1 - s', and adds fresh noise up to the level s'.
        # Source: diffusers, `LTXEulerAncestralRFScheduler.step`, eta 1, s_noise 1.
        down = following**2 / now
        scale = (1 - following) / (1 - down)
        predictor = np.stack([scale * down / now, scale * (1 - down / now), zeros], 1).astype(np.float32)
        noise = np.sqrt(np.maximum(following**2 - (scale * down) ** 2, 0)).astype(np.float32)
        schedule = dataclasses.replace(schedule, predictor=predictor, noise=noise)
    elif solver in ADDS_NOISE:  # the next sample is (1 - s') clean + s' noise, with the next noise level s'
        predictor = np.stack([zeros, 1 - following, zeros], 1).astype(np.float32)
        schedule = dataclasses.replace(schedule, predictor=predictor, noise=following.astype(np.float32))
    start_scale = float(sigmas[0]) if solver in ("rcm", "rcm-ode") else 1.0
    return dataclasses.replace(schedule, timesteps=timesteps.astype(np.float32), start_scale=start_scale)


def _join_schedules(first: Schedule, later: Schedule, steps: int) -> Schedule:
    tables = {
        name: np.concatenate([getattr(first, name)[:steps], getattr(later, name)])
        for name in ("sigmas", "timesteps", "corrector", "predictor")
    }
    noise = None if first.noise is None else np.append(first.noise, np.zeros(later.steps, np.float32))
    return dataclasses.replace(first, noise=noise, **tables)


def _euler_schedule(sigmas: np.ndarray) -> Schedule:
    """Compute the tables of Euler. With the velocity v, a step takes x from the noise level s to x' = x + (s' - s) v at s'. The
    clean estimate is x - s v. So x' = (s' / s) x + (1 - s' / s) clean.
    """
    steps, ratio = len(sigmas) - 1, sigmas[1:] / sigmas[:-1]
    predictor = np.stack([ratio, 1 - ratio, np.zeros(steps)], 1)
    corrector = np.tile([1.0, 0, 0, 0, 0], (steps, 1))
    return _make_schedule(sigmas, sigmas[:-1] * NUM_TRAIN_TIMESTEPS, corrector, predictor)


def _make_schedule(sigmas: ArrayLike, timesteps: ArrayLike, corrector: ArrayLike, predictor: ArrayLike) -> Schedule:
    return Schedule(
        sigmas=np.asarray(sigmas, np.float32),
        timesteps=np.asarray(timesteps, np.float32),
        corrector=np.asarray(corrector, np.float32),
        predictor=np.asarray(predictor, np.float32),
    )


def _log_snr(sigma: float) -> float:
    return math.log((1 - sigma) / sigma) if sigma > 0 else math.inf


def _predictor_weights(sigmas: np.ndarray, step: int, order: int) -> list[float]:
    """Return the weights of (corrected sample, new clean estimate, last clean estimate) in the next sample (UniP)."""
    now, following = sigmas[step], sigmas[step + 1]
    # growth = 1 - exp(-h), where h is the increase of lambda in this step. The growth is 1 in the last step, where h is infinite.
    growth = -math.expm1(_log_snr(now) - _log_snr(following))
    weight = (1 - following) * growth
    if order == 1:
        return [following / now, weight, 0.0]
    ratio = (_log_snr(sigmas[step - 1]) - _log_snr(now)) / (_log_snr(following) - _log_snr(now))
    slope = weight * 0.5 / ratio
    return [following / now, weight - slope, slope]


def _corrector_weights(sigmas: np.ndarray, step: int) -> list[float]:
    """Return the weights of (`sample`, `before`, new clean estimate, `clean`, `older`) in the corrected sample, see `take_step`.

    These are the weights of UniC, the corrector of UniPC, with the order 1 or 2 of the previous step's predictor.
    """
    if step == 0:
        return [1.0, 0.0, 0.0, 0.0, 0.0]
    before, now = sigmas[step - 1], sigmas[step]
    h = _log_snr(now) - _log_snr(before)
    scale = (1 - now) * math.expm1(-h)  # alpha * B(h)
    if step == 1:
        newest = -scale * 0.5
        return [0.0, now / before, newest, -scale - newest, 0.0]
    # rho is the solution of R rho = b of UniC-2 with B(h) = exp(-h) - 1 (Zhao et al. 2023, eq. 9)
    ratio = (_log_snr(sigmas[step - 2]) - _log_snr(before)) / h
    target, factorial = [], 1.0
    phi = math.expm1(-h) / -h - 1
    for power in (1, 2):
        target.append(phi * factorial / math.expm1(-h))
        factorial *= power + 1
        phi = phi / -h - 1 / factorial
    rho = np.linalg.solve(np.array([[1.0, 1.0], [ratio, 1.0]]), np.array(target))
    newest = -scale * rho[1]
    older = -scale * rho[0] / ratio
    return [0.0, now / before, newest, -scale - newest - older, older]


def guide(velocity: jax.Array, guidance: jax.Array) -> jax.Array:
    """Apply classifier-free guidance: unprompted + guidance * (prompted - unprompted), [1, ...].

    `velocity` [2, ...] has the branch with the prompt, then the negative prompt. A single branch [1, ...] is returned unchanged.
    """
    if velocity.shape[0] == 1:
        return velocity
    prompted, unprompted = velocity[:1], velocity[1:]
    return unprompted + guidance * (prompted - unprompted)


def guide_by_zero_star(velocity: jax.Array, guidance: jax.Array) -> jax.Array:
    """Apply guidance after projecting the prompted velocity on the unprompted velocity, in float32. Source: CFG-Zero*,
    arXiv:2503.18886, as diffusers' `ClassifierFreeZeroStarGuidance`.
    """
    prompted, unprompted = velocity[:1], velocity[1:]
    wide = prompted.astype(jnp.float32), unprompted.astype(jnp.float32)
    scale = jnp.sum(wide[0] * wide[1]) / (jnp.sum(wide[1] * wide[1]) + 1e-8)
    return guide(jnp.concatenate([prompted, unprompted * scale.astype(velocity.dtype)]), guidance)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepInputs:
    """The values of one step. They are arrays, so that all steps share one program."""

    timestep: jax.Array
    sigma: jax.Array
    corrector: jax.Array
    predictor: jax.Array
    guidance: jax.Array


def make_step_inputs(schedule: Schedule, index: int, guidance: float) -> StepInputs:
    return StepInputs(
        timestep=jnp.asarray(schedule.timesteps[index]),
        sigma=jnp.asarray(schedule.sigmas[index]),
        corrector=jnp.asarray(schedule.corrector[index]),
        predictor=jnp.asarray(schedule.predictor[index]),
        guidance=jnp.asarray(guidance, jnp.float32),
    )


def take_guided_step(
    state: SamplerState, velocity: jax.Array, inputs: StepInputs, guide_branches: Callable[..., jax.Array] = guide
) -> SamplerState:
    """Take one step with the velocity of one or both guidance branches, [1 or 2, C, F, H, W]."""
    return take_step(state, guide_branches(velocity, inputs.guidance), inputs.sigma, inputs.corrector, inputs.predictor)


def take_still_step(state: SamplerState, inputs: StepInputs) -> SamplerState:
    return take_step(state, jnp.zeros_like(state.sample), inputs.sigma, inputs.corrector, inputs.predictor)
