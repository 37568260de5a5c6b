"""Measures how much a model's layers add from step to step, in one video, for MagCache."""

from collections.abc import Generator

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.model import Conditions
from backend.pipeline import prompt_schedule
from backend.pipeline.denoising import initial_noise
from backend.pipeline.run import Run
from backend.runtime.work import run as do
from backend.sampling.plan import plan_of
from backend.sampling.solvers import make_step_inputs
from backend.schemas.events import Step
from backend.schemas.request import GenerationRequest
from presets.magnitude_files import BranchRatios

NEVER = {"mag_cache": 1e-6, "mag_ratios": (2.0, 2.0)}
"""Settings by which every step runs all layers and gives what they added: the ratios say that none may be reused."""


def as_measured(request: GenerationRequest) -> GenerationRequest:
    """The request with nothing that spares work, and with guidance on all steps."""
    return request.changed(step_cache=0.0, cfg_zero=False, guidance_interval=(0.0, 1.0), **NEVER)


def measure(run: Run, conditions: Conditions) -> Generator[Step, None, BranchRatios]:
    """The ratios of all steps of a request that is `as_measured`. Denoises the whole video, and makes no pixels."""
    model, request, own = run.model, run.request, prompt_schedule.conditions_of(conditions, 0)
    plan, noise = plan_of(request, model.kind.boundary), initial_noise(request, model)
    states, key, before = model.start(request, own, noise), None, None
    step_context = None
    ratios = []
    for index, step_plan in enumerate(plan.steps):
        if key != step_plan.context_key:
            step_context = None  # its keys take much memory
            (step_context, _), key = (
                do(model.make_step_context(run.weights, request, own, step_plan, None)),
                step_plan.context_key,
            )
            states = jax.device_put(states, step_context.layout.replicated)
        assert step_context is not None, "the first step makes one"
        with run.clock.measure("denoise"):
            row = make_step_inputs(plan.schedule, index, step_plan.guidance)
            states, added = do(model.step(run.weights, request, step_context, states, row, None, index))
            ratios.append(_growth(before, added, step_context.context.positions.num_tokens))
            before = added
        seconds = run.clock.seconds["denoise"] / (index + 1)
        yield Step(index + 1, len(plan.steps), seconds, seconds * (len(plan.steps) - index - 1), None)
    prompt, other = zip(*ratios, strict=True)
    return BranchRatios(prompt=prompt, other=other)


def _growth(before: jax.Array | None, added: jax.Array, num_tokens: int) -> tuple[float, float]:
    """How many times as large as before that is which was added to a token, in the mean of the tokens that are no padding: in the
    branch with the prompt and in the other one, or twice the same if there is one. Source: the authors' calibration."""
    if before is None:
        return 1.0, 1.0
    branches = min(len(before), len(added))
    ratios = np.asarray(_mean_ratio(before[:branches, :num_tokens], added[:branches, :num_tokens]))
    return round(float(ratios[0]), 5), round(float(ratios[-1]), 5)


@jax.jit
def _mean_ratio(before: jax.Array, added: jax.Array) -> jax.Array:
    """[B] of two [B, S, D]."""
    old, new = (jnp.linalg.norm(tokens.astype(jnp.float32), axis=-1) for tokens in (before, added))
    return jnp.mean(new / jnp.maximum(old, 1e-8), axis=1)
