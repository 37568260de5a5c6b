"""Compile in advance every program that a video runs, which running it with shapes instead of arrays finds. Warming up,
`precompile` and `check-tpu` all use `calls`, so each sees exactly the programs of a real video."""

import math
import os
import time
from collections.abc import Callable, Collection, Generator, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from backend.host_memory import free_memory
from backend.models.model import SOUND, STAGES, VIDEO, Model, Stage
from backend.pipeline import prompt_schedule
from backend.pipeline.decoding import decode_piece, decode_preview
from backend.pipeline.denoising_loop import Denoising
from backend.pipeline.inputs import blank_inputs
from backend.pipeline.run import Described
from backend.runtime.compile_times import CompileTimes, Forecast
from backend.runtime.program import Compilation
from backend.runtime.work import Call, Work, describe, list_calls
from backend.schemas.events import Compiling, Event
from backend.schemas.progressive import request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.settings import from_environment

MOST_AT_ONCE = 4
# Bytes of host memory that one compilation may need, for example of a large step on TPUs. The free memory of the host divided by
# this number limits how many programs are compiled at once.
MEMORY_OF_COMPILER = 8 * 10**9


def warm_up(model: Model, request: GenerationRequest, stages: Collection[Stage] = STAGES) -> Generator[Event]:
    """Compile the programs that these stages of the request still need, several at once. The programs that run last are compiled
    first, because the decoder takes longest to compile. Before waiting for a program, yields an event with the program's name,
    its number and the remaining time, and a second event if the program was loaded from a file. If the caller closes the
    generator, compilations in progress are finished."""
    first_calls: dict[Hashable, Call] = {}
    for call in calls(model, request, stages):
        if not call.program.is_ready(*call.arguments):
            first_calls.setdefault(call.program.variant_key(*call.arguments), call)
    if not first_calls:
        return
    unready = list(first_calls.values())[::-1]
    times = CompileTimes(from_environment().cache_dir / "compile-seconds.json")
    at_once = max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // 2, free_memory() // MEMORY_OF_COMPILER))
    kinds, total = [], len(unready)
    for call in unready:  # a kind of program is the number and type of its devices, and its key
        devices = call.program.layout.mesh.devices.flatten()
        kinds.append(f"{len(devices)} {devices[0].device_kind}: {call.program.key}")
    forecast = Forecast(kinds, times.read(), at_once)

    def compile_timed(compile_it: Callable[[], Compilation]) -> tuple[Compilation, float]:
        began = time.monotonic()
        return compile_it(), time.monotonic() - began

    with ThreadPoolExecutor(at_once, "compile") as pool:
        try:
            compilations = [pool.submit(compile_timed, call.program.trace(*call.arguments)) for call in unready]
            for index, (call, kind, future) in enumerate(zip(unready, kinds, compilations, strict=True), 1):
                name = call.program.name
                # Round up to tenths: 0 means that the time is unknown, so a short time must not become 0.
                left = math.ceil(10 * forecast.seconds_left) / 10
                yield Compiling(name, index=index, total=total, seconds_left=left)
                compilation, seconds = future.result()
                forecast.measured.append(seconds)
                if compilation.is_loaded:
                    left = math.ceil(10 * forecast.seconds_left) / 10
                    yield Compiling(name, is_loaded=True, index=index, total=total, seconds_left=left)
                else:
                    times.record({kind: seconds})
        finally:
            pool.shutdown(cancel_futures=True)


def calls(model: Model, request: GenerationRequest, stages: Collection[Stage] = STAGES) -> Iterator[Call]:
    """Yield all calls of programs in these stages of the video, in order, with shapes as arguments. A program that runs several
    times is yielded several times, but a preview only once."""
    return list_calls(_video_work(model, request, stages))


def _video_work(model: Model, request: GenerationRequest, stages: Collection[Stage]) -> Work:
    """Yield the work of `generate` for these stages. All arrays are replaced by their shapes."""
    run, small = Described(request=request, model=model), request_at_first_size(request)

    encoding = prompt_schedule.encode_all_texts(model, run.weights, request, blank_inputs(request))
    conditions = (yield from encoding) if "encode" in stages else describe(encoding)
    if "denoise" in stages:
        loop = Denoising(run, conditions)
        while loop.steps_done < loop.total_steps:
            yield from loop.next_step()
        # If the model enlarges latents itself, previews of the first steps have the smaller size. All other previews have the
        # video's size.
        for sized in (request, small) if model.spec.refines and small != request else (request,):
            # Full-size previews may use the same program as the decoder. Then it is only yielded below, for "decode".
            if sized != request or "decode" not in stages or model.preview_stride != model.decode_stride:
                video: Any = jax.ShapeDtypeStruct(model.latent_shapes(sized)[VIDEO], jnp.float32)
                yield from decode_preview(run, video)
    described = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in model.latent_shapes(request).items()}
    latents, decoder_state = describe(model.finish(conditions.select(0).full, described)), None
    if "decode" not in stages:
        return
    for first in range(0, latents[VIDEO].shape[2], model.decode_stride):
        _, decoder_state = yield from decode_piece(run, latents[VIDEO], first, decoder_state)
    if SOUND in latents and request.keeps_sound and not request.sound:
        yield from model.decode_sound(run.weights, request, latents[SOUND])
