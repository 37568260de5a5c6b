"""Compiles ahead every program that a video runs, by going through the video with shapes in place of arrays.

Compiling ahead, `precompile` and `check-tpu` all go through `calls`, so each sees exactly the programs of a real video.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from backend.contract.events import Compiling, Event
from backend.contract.request import GenerationRequest
from backend.families.model import STAGES, Model, Stage
from backend.pipeline import cued
from backend.pipeline.chunks import chunks_of
from backend.pipeline.inputs import blank_inputs
from backend.runtime.compile_times import CompileTimes, Forecast, kind_of
from backend.runtime.work import Call, Put, Work, describe, describe_effect
from backend.sampling.plan import plan_of
from backend.sampling.solvers import step_inputs
from backend.settings import from_environment


def warm_up(model: Model, request: GenerationRequest, stages: Collection[Stage] = STAGES) -> Iterator[Event]:
    """Compile the programs that these stages of the request still need. Each program's name is yielded before, with its number
    and the time left, and again if the program was loaded from a file instead."""
    lacking = _lacking(model, request, stages)
    times = CompileTimes(from_environment().cache_dir / "compile-seconds.json")
    kinds = [kind_of(call.program) for call in lacking]
    forecast, total = Forecast(kinds, times.read() if kinds else {}), len(lacking)
    for index, (call, kind) in enumerate(zip(lacking, kinds, strict=True), 1):
        program, arguments, began = call.program, call.arguments, time.monotonic()
        yield Compiling(program.name, index=index, total=total, seconds_left=round(forecast.seconds_left, 1))
        program.prepare(*arguments)
        seconds = time.monotonic() - began
        forecast.done(seconds)
        if program.is_loaded(*arguments):
            yield Compiling(program.name, is_loaded=True, index=index, total=total, seconds_left=round(forecast.seconds_left, 1))
        else:
            times.learn({kind: seconds})


def _lacking(model: Model, request: GenerationRequest, stages: Collection[Stage]) -> list[Call]:
    """The first call of each program that is not ready for its arguments, in order."""
    found: dict[Hashable, Call] = {}
    for call in calls(model, request, stages):
        if not call.program.is_ready(*call.arguments):
            found.setdefault(call.program.variant(*call.arguments), call)
    return list(found.values())


def calls(model: Model, request: GenerationRequest, stages: Collection[Stage] = STAGES) -> Iterator[Call]:
    """The calls of programs in these stages of the video, in order, each as often as it runs; arguments are shapes.

    Previews are counted once, not once per step.
    """
    work, result = _video(model, request, stages), None
    while True:
        try:
            effect = work.send(result)
        except StopIteration:
            return
        if isinstance(effect, Call):
            yield effect
        result = describe_effect(effect)


def _video(model: Model, request: GenerationRequest, stages: Collection[Stage]) -> Work:
    weights = {network.part: network.at_rest for network in model.networks}
    encoding = cued.encode(model, weights, request, blank_inputs(request))
    conditions = (yield from encoding) if "encode" in stages else describe(encoding)
    if "denoise" in stages:
        yield from _denoise(model, weights, request, conditions)
    latents = jax.ShapeDtypeStruct(model.latent_shape(request), jnp.float32)
    latents = describe(model.finish(cued.conditions_of(conditions, 0), latents))
    if "decode" in stages:
        yield from _decode(model, weights, request, latents)
    elif "denoise" in stages:
        yield from _first_piece(model, weights, request, latents)


def _denoise(model: Model, weights: Any, request: GenerationRequest, conditions: Any) -> Work:
    plan = plan_of(request, model.kind.boundary)
    lane, carry, script, last = None, None, cued.Script(request), None
    for chunk in chunks_of(model, request):
        text = script.number_at(chunk.index)
        if text != last:
            lane, own, last = None, cued.conditions_of(conditions, text, model.kind.from_inputs), text
        noise = jax.ShapeDtypeStruct(chunk.shape, jnp.float32)
        state = jax.eval_shape(functools.partial(model.start, request), own, noise)
        for index, planned in enumerate(plan.steps):
            if lane is None or (lane.expert, lane.is_guided) != (planned.expert, planned.is_guided):
                lane, carry = yield from model.lane(weights, request, own, planned, carry)
                state = yield Put(state, lane.layout.replicated)
            row = step_inputs(plan.schedule, index, planned.guidance)
            state, carry = yield from model.step(weights, request, lane, state, row, carry, index)
        carry = yield from model.settle(weights, request, lane, state.clean, carry)


def _first_piece(model: Model, weights: Any, request: GenerationRequest, latents: jax.ShapeDtypeStruct) -> Work:
    """The decoder's first piece, which a step's preview shows too."""
    return (yield from model.decode(weights, request, _piece_of(latents, model.decode_stride), None))


def _decode(model: Model, weights: Any, request: GenerationRequest, latents: jax.ShapeDtypeStruct) -> Work:
    num_frames, stride = latents.shape[2], model.decode_stride
    _, carry = yield from _first_piece(model, weights, request, latents)
    for first in range(stride, num_frames, stride):
        piece = _piece_of(latents, min(stride, num_frames - first))
        _, carry = yield from model.decode(weights, request, piece, carry)


def _piece_of(latents: jax.ShapeDtypeStruct, num_frames: int) -> jax.ShapeDtypeStruct:
    shape = (*latents.shape[:2], min(num_frames, latents.shape[2]), *latents.shape[3:])
    return jax.ShapeDtypeStruct(shape, latents.dtype)
