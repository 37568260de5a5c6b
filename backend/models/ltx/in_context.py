"""Control clips, whose tokens follow the video's tokens. A control clip with noise has its own sampler state.

With `control_scale` 1 the clip stays clean, at timestep 0. With a smaller scale, the clip's noise level and timestep are the
values of the video times (1 - `control_scale`). Each step then blends the transformer's estimate of the clip with the clip's
clean latents, which have the weight `control_scale`. Ancestral steps add no fresh noise to the clip.

Source: diffusers, `LTX2InContextPipeline`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from backend.media.control import control_frame
from backend.models.common.pixels import as_float32, clip_to_pixels
from backend.models.ltx.transformer import Context
from backend.models.model import Conditions, States
from backend.runtime.program import Program
from backend.runtime.work import Call, OnHost, Work
from backend.sampling.solvers import SamplerState, StepInputs, add_noise, start_state
from backend.schemas.request import GenerationRequest

CONTROL = "control"
"""The name of the control clip's latents in the conditions, and of the control clip's sampler state."""

_NOISE = 3  # combined with the request's seed, so that the control clip and the video have different noise


def encode_control(encode: Program, vae: object, request: GenerationRequest, frames: np.ndarray, dtype: jnp.dtype) -> Work:
    """Encode the control clip `frames` uint8 [F, H, W, 3] to latents [1, C, F, H, W]. Yields work.

    First convert the frames as the request's `control_kind` requires, for example to edges.
    """
    shown = np.stack([control_frame(frame, request.control_kind) for frame in frames])
    latents = yield Call(encode, (vae, clip_to_pixels(shown, dtype)))
    return (yield OnHost(as_float32, (latents,)))


def control_noise(request: GenerationRequest) -> np.float32 | None:
    """Return the control clip's noise level divided by the video's noise level.

    Returns None if there is no clip, or if the clip stays clean (`control_scale` 1).
    """
    return np.float32(1 - request.control_scale) if request.control and request.control_scale < 1 else None


def add_control_state(states: States, request: GenerationRequest, conditions: Conditions) -> States:
    """Return `states` and, if the control clip has noise, the clip's sampler state before the first step."""
    share = control_noise(request)
    if share is None:
        return states
    clean = jnp.asarray(conditions[CONTROL])
    drawn = np.random.default_rng((request.seed, _NOISE)).standard_normal(clean.shape, np.float32)
    return {**states, CONTROL: start_state(add_noise(clean, jnp.asarray(drawn), share))}


def join_video_tokens(video: jax.Array, states: States, context: Context) -> jax.Array:
    """Join the tokens of the video, the keyframes and the control clip to [1, C, S]."""
    control = states[CONTROL].sample if CONTROL in states else context.control
    pieces = [latents for latents in (video, context.keyframes, control) if latents is not None]
    return jnp.concatenate([latents.reshape(*latents.shape[:2], -1) for latents in pieces], axis=2)


def step_control(
    states: States, clean: jax.Array, context: Context, step_inputs: StepInputs, is_ancestral: bool
) -> dict[str, SamplerState]:
    """Return the control clip's sampler state after the step, or an empty dictionary if no control clip has noise.

    `clean` [1, C, S] are the estimates of the clean tokens of video, keyframes and control clip, in this order.
    """
    if CONTROL not in states:
        return {}
    state = states[CONTROL]
    assert context.control is not None and context.control_noise is not None, "only a clip with noise has a state"
    estimate = clean[:, :, -context.control[0, 0].size :].reshape(state.sample.shape)
    drawn_back = estimate * context.control_noise + context.control * (1 - context.control_noise)
    ratio = level_ratio(step_inputs, is_ancestral)
    return {CONTROL: dataclasses.replace(state, sample=state.sample * ratio + drawn_back * (1 - ratio))}


def level_ratio(step_inputs: StepInputs, is_ancestral: bool) -> jax.Array:
    """Return the next noise level divided by the current noise level.

    An ancestral step first denoises to a level below the next noise level: the current level times the square of this ratio.
    Fresh noise then raises the noise to the next level.
    """
    first, second = step_inputs.predictor[0], step_inputs.predictor[1]
    return jnp.sqrt(first / (first + second)) if is_ancestral else first
