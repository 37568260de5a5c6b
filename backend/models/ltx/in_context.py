"""Control clips, whose tokens follow the video's tokens. With `control_scale` 1 the clip stays clean, at timestep 0. With a
smaller scale, it has its own sampler state, and its noise level and timestep are the values of the video times (1 -
`control_scale`). Each step then blends the transformer's estimate of the clip with the clip's clean latents, which have the
weight `control_scale`. Ancestral steps add no fresh noise to the clip. Source: diffusers, `LTX2InContextPipeline`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.ltx.transformer import Context
from backend.models.model import States
from backend.sampling.solvers import SamplerState, StepInputs
from backend.schemas.request import GenerationRequest

CONTROL = "control"
"""The name of the control clip's latents in the conditions, and of the control clip's sampler state."""

NOISE = 3  # combined with the request's seed, so that the control clip and the video have different noise


def control_noise(request: GenerationRequest) -> np.float32 | None:
    """Return the control clip's noise level divided by the video's noise level. Returns None if there is no clip, or if the clip
    stays clean (`control_scale` 1)."""
    return np.float32(1 - request.control_scale) if request.control and request.control_scale < 1 else None


def step_control(
    states: States, clean: jax.Array, context: Context, step_inputs: StepInputs, is_ancestral: bool
) -> dict[str, SamplerState]:
    """Return the control clip's sampler state after the step, or an empty dictionary if no control clip has noise. `clean` [1, C,
    S] are the estimates of the clean tokens of video, keyframes and control clip, in this order."""
    if CONTROL not in states:
        return {}
    state = states[CONTROL]
    assert context.control is not None and context.control_noise is not None, "only a clip with noise has a state"
    estimate = clean[:, :, -context.control[0, 0].size :].reshape(state.sample.shape)
    drawn_back = estimate * context.control_noise + context.control * (1 - context.control_noise)
    ratio = level_ratio(step_inputs, is_ancestral)
    return {CONTROL: dataclasses.replace(state, sample=state.sample * ratio + drawn_back * (1 - ratio))}


def level_ratio(step_inputs: StepInputs, is_ancestral: bool) -> jax.Array:
    """Return the next noise level divided by the current noise level. An ancestral step first denoises to a level below the next
    noise level: the current level times the square of this ratio. Fresh noise then raises the noise to the next level."""
    first, second = step_inputs.predictor[0], step_inputs.predictor[1]
    return jnp.sqrt(first / (first + second)) if is_ancestral else first
