"""Measure how much the output of a model's layers changes from step to step in one video, for MagCache."""

from collections.abc import Generator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from backend.pipeline.denoising_loop import draw_initial_noise, load_expert
from backend.pipeline.prompt_schedule import VideoConditions
from backend.pipeline.run import Run
from backend.runtime.work import run as do
from backend.sampling.solvers import make_step_inputs, schedule_for_request
from backend.schemas.events import Step
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from presets.magnitude_files import BranchRatios

NO_REUSE = {"mag_cache": 1e-6, "mag_ratios": (2.0, 2.0)}
"""MagCache's settings for measuring. With MagCache, each step also returns the layers' output. No step reuses this output,
because these ratios give an error above the allowed error."""


def disable_shortcuts(request: GenerationRequest) -> GenerationRequest:
    return request.with_changes(step_cache=0.0, cfg_zero=False, guidance_interval=(0.0, 1.0), **NO_REUSE)


def measure_ratios(run: Run, conditions: VideoConditions) -> Generator[Step, None, BranchRatios]:
    """Denoise the whole video without decoding it. Return how much the layers' output grows from each step to the next. The
    output [B, S, D] is what all layers together add to each token. The ratio of a token is the norm of its output divided by the
    norm in the previous step. The result has the mean ratio over the tokens with the prompt, then with the negative prompt.
    Without guidance, both are equal. In the first step, both are 1. `run.request` must be a result of `disable_shortcuts`.
    Source: the calibration of MagCache's authors."""
    model, request, first_conditions = run.model, run.request, conditions.select(0).full
    schedule, noise = schedule_for_request(request), draw_initial_noise(request, model)
    states, key, before = model.start(request, first_conditions, noise), None, None
    step_context, weights, loaded = None, run.weights, None
    ratios = []
    for index, step_plan in enumerate(plan_steps(request, model.spec.boundary)):
        if key != step_plan.context_key:
            step_context = None  # free the old context's keys, which take much memory, before the next context is created
            if loaded != step_plan.expert:
                weights = run.weights  # drops the last reference to the other expert's copy, which frees the copy
                weights, loaded = load_expert(model, run.weights, step_plan.expert), step_plan.expert
            step_context, _ = do(model.make_step_context(weights, request, first_conditions, step_plan, None))
            key = step_plan.context_key
            states = jax.device_put(states, step_context.layout.replicated)
        assert step_context is not None, "the first step makes one"
        positions = cast(Any, step_context).context.positions  # models with MagCache have a `WholeClipStepContext`
        with run.clock.measure("denoise"):
            step_inputs = make_step_inputs(schedule, index, step_plan.guidance)
            states, added = do(model.step(weights, request, step_context, states, step_inputs, None, index))
            if before is None:
                ratios.append((1.0, 1.0))
            else:
                branches = min(len(before), len(added))
                tokens = slice(positions.num_tokens)  # without padding
                mean_ratios = np.asarray(_mean_ratio(before[:branches, tokens], added[:branches, tokens]))
                ratios.append((round(float(mean_ratios[0]), 5), round(float(mean_ratios[-1]), 5)))
            before = added
        seconds = run.clock.seconds["denoise"] / (index + 1)
        yield Step(index + 1, request.num_steps, seconds, seconds * (request.num_steps - index - 1), None)
    prompt, other = zip(*ratios, strict=True)
    return BranchRatios(prompt=prompt, other=other)


@jax.jit
def _mean_ratio(before: jax.Array, added: jax.Array) -> jax.Array:
    """Return the mean over the tokens, [B], of the norm of a token of `added` divided by its norm in `before`, both [B, S, D]."""
    old, new = (jnp.linalg.norm(tokens.astype(jnp.float32), axis=-1) for tokens in (before, added))
    return jnp.mean(new / jnp.maximum(old, 1e-8), axis=1)
