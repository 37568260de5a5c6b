"""A control clip as tokens behind the video's: its latents, and its own state where it is followed in part.

Source: diffusers, `LTX2InContextPipeline`. A clip that is followed whole (`control_scale` 1) stays clean at timestep 0. Else it
begins with a share of the video's noise, its timestep is that share of the video's, and each step's estimate of it is drawn back
to its latents by the scale. An ancestral step adds no fresh noise to it: it goes to the next level as other steps do.
"""

import dataclasses
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.media.control import control_frame
from backend.models.common.pixels import as_float32, clip_to_pixels
from backend.models.ltx.transformer import Context
from backend.models.model import Conditions, States
from backend.runtime.program import Program
from backend.runtime.work import Call, Effect, OnHost
from backend.sampling.solvers import SamplerState, StepInputs, add_noise, start_state
from backend.schemas.request import GenerationRequest

CONTROL = "control"
"""The name of the clip's latents among the conditions, and of its state among those of the streams."""

_NOISE = 3  # with the seed, of the generator of the clip's noise


def encoded_control(
    encode: Program, vae: Any, request: GenerationRequest, frames: np.ndarray, dtype: jnp.dtype
) -> Generator[Effect, Any, Any]:
    """Work: the latents [1, C, F, H, W] of the clip `frames` uint8 [F, H, W, 3], or of what its kind makes of it."""
    shown = np.stack([control_frame(frame, request.control_kind) for frame in frames])
    latents = yield Call(encode, (vae, clip_to_pixels(shown, dtype)))
    return (yield OnHost(as_float32, (latents,)))


def control_noise(request: GenerationRequest) -> np.float32 | None:
    """The clip's share of the video's noise, a scalar; None for one that is followed whole, or without one."""
    return np.float32(1 - request.control_scale) if request.control and request.control_scale < 1 else None


def with_control(states: States, request: GenerationRequest, conditions: Conditions) -> States:
    """The states before the first step, with the clip's if it is followed in part."""
    share = control_noise(request)
    if share is None:
        return states
    clean = jnp.asarray(conditions[CONTROL])
    drawn = np.random.default_rng((request.seed, _NOISE)).standard_normal(clean.shape, np.float32)
    return {**states, CONTROL: start_state(add_noise(clean, jnp.asarray(drawn), share))}


def seen_tokens(video: jax.Array, states: States, context: Context) -> jax.Array:
    """What the transformer sees of the video, [1, C, S]: its own tokens, those of key frames, those of the clip."""
    control = states[CONTROL].sample if CONTROL in states else context.control
    pieces = [latents for latents in (video, context.keyframes, control) if latents is not None]
    return jnp.concatenate([latents.reshape(*latents.shape[:2], -1) for latents in pieces], axis=2)


def control_step(
    states: States, clean: jax.Array, context: Context, step_inputs: StepInputs, is_ancestral: bool
) -> dict[str, SamplerState]:
    """The clip's state after the step, if it has one; `clean` [1, C, S] are the estimates of all tokens, the clip's the last."""
    if CONTROL not in states:
        return {}
    state = states[CONTROL]
    assert context.control is not None and context.control_noise is not None, "the clip has a state if it has noise"
    estimate = clean[:, :, -context.control[0, 0].size :].reshape(state.sample.shape)
    drawn_back = estimate * context.control_noise + context.control * (1 - context.control_noise)
    ratio = level_ratio(step_inputs, is_ancestral)
    return {CONTROL: dataclasses.replace(state, sample=state.sample * ratio + drawn_back * (1 - ratio))}


def level_ratio(step_inputs: StepInputs, is_ancestral: bool) -> jax.Array:
    """The next noise level's share of this one. An ancestral step goes down to its square, and is scaled."""
    first, second = step_inputs.predictor[0], step_inputs.predictor[1]
    return jnp.sqrt(first / (first + second)) if is_ancestral else first
