"""Compiles ahead every program that a video runs, by going through the video with shapes in place of arrays.

Compiling ahead, `precompile` and `check-tpu` all go through `calls`, so each sees exactly the programs of a real video.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterator

import jax
import jax.numpy as jnp

from backend.contract.events import Compiling, Event
from backend.contract.refining import first_size, refining_steps
from backend.contract.request import GenerationRequest
from backend.families.model import STAGES, VIDEO, Latents, Model, Stage
from backend.pipeline import cue_conditions
from backend.pipeline.decoding import decode_all, decode_preview
from backend.pipeline.denoising import Denoising, conditions_at_size
from backend.pipeline.inputs import blank_inputs
from backend.pipeline.run import Described
from backend.runtime.compile_times import CompileTimes, Forecast, kind_of
from backend.runtime.work import Call, Work, describe, describe_effect
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
    """Work: what `generate` does, stage by stage."""
    run = Described(request=request, model=model)
    encoding = cue_conditions.encode(model, run.weights, request, blank_inputs(request))
    conditions = (yield from encoding) if "encode" in stages else describe(encoding)
    if "denoise" in stages:
        loop = Denoising(run, conditions)
        while loop.steps_done < loop.total:
            yield from loop.next_step()
    sizes = (request, first_size(request)) if refining_steps(request) else (request,)
    for sized in sizes if "denoise" in stages else ():
        if sized != request or "decode" not in stages or model.preview_stride != model.decode_stride:  # else the decoder's own
            yield from decode_preview(run, _described(model, sized)[VIDEO])
    own = conditions_at_size(cue_conditions.conditions_of(conditions, 0), is_full=True)
    latents = describe(model.finish(own, _described(model, request)))
    if "decode" in stages:
        yield from decode_all(run, latents)


def _described(model: Model, request: GenerationRequest) -> Latents:
    """The shapes of the request's latents."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in model.latent_shapes(request).items()}
