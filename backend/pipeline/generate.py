"""A request to a video: encode -> denoise -> decode, yielding an event wherever there is something to tell."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.contract.events import Cancelled, Compiling, Decoding, Encoding, Event, Finished, Loading, Step, VideoResult
from backend.contract.request import GenerationRequest, find_preset
from backend.errors import Stopped
from backend.families.wan.conditions import (
    Conditions,
    Lane,
    empty_cache,
    encode,
    latent_shape,
    make_lane,
    text_arguments,
    tokenize,
)
from backend.families.wan.family import check_preset
from backend.families.wan.text_encoder import TextTokens
from backend.families.wan.transformer import Condition, FirstFrame, ImageChannels, StepCache
from backend.media.video import write_video
from backend.pipeline.live_events import live_events, until
from backend.pipeline.load import STAGES, Components, Programs, Stage, merge_loras
from backend.pipeline.previews import StepPreviews, to_bytes
from backend.pipeline.stage_files import write_conditions, write_latents
from backend.runtime.program import Program
from backend.sampling.plan import PlannedStep, plan_steps
from backend.sampling.solvers import SamplerState, Schedule, StepInputs, make_schedule, start, step_inputs

ANIMATED_STEP_SECONDS = 0.25  # a picture that changes more often than this has no time to move
DECODE_SHARE = 0.15  # of the denoising time, until a run on this machine has told: the demo model's, derived


class StageClock:
    """Seconds by stage, for the result."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"compile": 0.0, "encode": 0.0, "denoise": 0.0, "decode": 0.0}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to this stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What all stages of one video share. `notes` are told with the result.

    Raises: ModelError where the model is of another kind than the request's preset.
    """

    request: GenerationRequest
    components: Components
    folder: Path
    is_cancelled: Callable[[], bool]
    clock: StageClock = dataclasses.field(default_factory=StageClock)
    notes: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        vae, preset = self.components.guided.vae, find_preset(self.request.preset)
        check_preset(self.components.family, (vae.spatial_scale, vae.temporal_scale), preset, "that is loaded")

    @property
    def programs(self) -> Programs:
        """For encoding and decoding, on whichever mesh the request needs anyway."""
        return self.components.programs(self.request.is_guided)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoised:
    """The sampler's state after so many steps."""

    state: SamplerState
    steps_done: int


def generate(
    request: GenerationRequest, components: Components, folder: Path, is_cancelled: Callable[[], bool]
) -> Iterator[Event]:
    """Make the request's video in `folder`. Ends with Finished, or with Cancelled and what there was by then.

    Raises: ModelError where the model is of another kind than the request's preset, or a LoRA fits nothing.
    """
    run = Run(request=request, components=components, folder=folder, is_cancelled=is_cancelled)
    folder.mkdir(parents=True, exist_ok=True)
    yield from prepare(run)
    if is_cancelled():
        yield Cancelled(None)
        return
    conditions = yield from encode_conditions(run)
    denoised = yield from denoise(run, conditions)
    if is_cancelled():
        yield Cancelled(_partial_video(run, conditions, denoised))
        return
    latents = conditions.with_first_frame(denoised.state.sample)
    write_latents(folder, request, latents)
    yield from decode(run, latents)


def prepare(run: Run, stages: Collection[Stage] = STAGES) -> Iterator[Event]:
    """Everything before the first of these stages begins: LoRAs merged, programs compiled. A cancel ends it between two programs.
    Raises: ModelError where a LoRA fits nothing."""
    if "denoise" in stages:
        yield from _merge_loras(run)
        if run.is_cancelled():
            return
    with run.clock.stage("compile"):
        for event in warm_up(run.components, run.request, stages):
            yield event
            if run.is_cancelled():
                return


def _merge_loras(run: Run) -> Iterator[Event]:
    """The request's LoRAs into the weights, and those of the last request out of them, with a download's progress. A cancel ends
    it within a second or so; the next request's LoRAs then take the place of what there is."""
    if not run.request.loras and all(expert.loras == () for expert in run.components.experts):
        return
    yield Loading(0, 0, "the LoRAs")

    def merge(tell: Callable[[Event], None]) -> None:
        run.notes.extend(merge_loras(run.components, run.request.loras, until(run.is_cancelled, tell)))

    with run.clock.stage("lora"), contextlib.suppress(Stopped):
        yield from live_events(merge)


def warm_up(components: Components, request: GenerationRequest, stages: Collection[Stage] = STAGES) -> Iterator[Event]:
    """Compile what these stages of the request need and is not there yet, telling each program's name beforehand.

    Works on described components too, whose weights are shapes and whose devices are not here.
    """
    programs = components.programs(request.is_guided)
    if "encode" in stages:
        tokens = _tokens_like(request, components)
        yield from _prepared(programs.embed_text, _text_weights_like(components, programs), tokens.ids, tokens.mask)
        if request.task == "i2v":
            yield from _warm_up_images(components, request)
    if "denoise" in stages:
        plan = _plan(request, components, make_schedule(request.solver, request.steps, request.flow_shift))
        for is_guided in dict.fromkeys(step.is_guided for step in plan):
            yield from _warm_up_step(components, request, is_guided)
    first_latents = _latents_like(request, components, num_latent_frames=1)
    if {"denoise", "decode"} & set(stages):  # a step's preview is decoded too
        _, caches = yield from _prepared(programs.decode_first, components.vae_weights, first_latents)
        if "decode" in stages and request.num_frames > 1:
            yield from _prepared(programs.decode_next, components.vae_weights, first_latents, caches)


def _warm_up_images(components: Components, request: GenerationRequest) -> Iterator[Event]:
    programs, weights = components.programs(request.is_guided), components.vae_weights

    def frames_like(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, 3, count, request.height, request.width), components.dtype)

    if components.family.conditioning == "first_frame":
        yield from _prepared(programs.encode_image, weights, frames_like(1))
        return
    _, caches = yield from _prepared(programs.encode_first, weights, frames_like(1))
    yield from _prepared(programs.encode_next, weights, frames_like(request.geometry().temporal_scale), caches)
    if components.image_encoder is not None:
        pixels = components.image_encoder.pixels_like(_num_pictures(request), components.dtype)
        yield from _prepared(programs.embed_image, components.image_weights, pixels)


def _num_pictures(request: GenerationRequest) -> int:
    return sum(path is not None for path in (request.image, request.last_image))


def _warm_up_step(components: Components, request: GenerationRequest, is_guided: bool) -> Iterator[Event]:
    """Both programs of a lane; all experts have the same shapes, so one lane stands for all."""
    programs, weights, branches = components.programs(is_guided), components.experts[0].weights, 2 if is_guided else 1
    tokens = _tokens_like(request, components)
    embedded = programs.embed_text.describe(_text_weights_like(components, programs), tokens.ids, tokens.mask)
    embedded = jax.ShapeDtypeStruct((branches, *embedded.shape[1:]), embedded.dtype)
    bias = None if tokens.bias is None else tokens.bias[:branches]
    keys = (weights, *text_arguments(components, embedded, bias, _seen_like(request, components)))
    text = yield from _prepared(programs.prepare_text, *keys)
    positions = programs.denoiser.describe_positions(latent_shape(request, components))
    latents, condition = _latents_like(request, components), condition_like(request, components)
    arguments = step_arguments(request, weights, latents, text, positions, condition)
    step = programs.step
    if request.step_cache:
        cache = programs.denoiser.describe_cache(text, positions)
        step, arguments = programs.cached_step, (*arguments, cache, jax.ShapeDtypeStruct((), jnp.float32))
    yield from _prepared(step, *arguments)


def _text_weights_like(components: Components, programs: Programs) -> dict[str, jax.ShapeDtypeStruct]:
    """Where the program takes them, loaded or not, and wherever they rest."""
    return components.text_encoder.describe_weights(components.dtype, programs.layout)


def _seen_like(request: GenerationRequest, components: Components) -> jax.ShapeDtypeStruct | None:
    encoder = components.image_encoder
    return None if encoder is None else encoder.tokens_like(_num_pictures(request), components.dtype)


def condition_like(request: GenerationRequest, components: Components) -> Condition:
    """The shape of what a picture adds to the transformer's input, or None."""
    if request.task == "t2v":
        return None
    if components.family.conditioning == "first_frame":
        return FirstFrame(latents=_latents_like(request, components, 1))
    channels = components.guided.vae.latent_channels + request.geometry().temporal_scale
    return ImageChannels(values=jax.ShapeDtypeStruct(request.geometry().latent_shape(channels), jnp.float32))


def step_arguments(request: GenerationRequest, weights, latents, text, positions, condition: Condition) -> tuple:
    """What the step's program takes, for compiling: `latents` and `condition` by shape, the rest as it comes."""
    state = SamplerState(sample=latents, before=latents, clean=latents, older=latents)
    inputs = step_inputs(make_schedule(request.solver, 1, request.flow_shift), 0, request.guidance[0])
    return weights, state, inputs, text, positions, condition


def _plan(request: GenerationRequest, components: Components, schedule: Schedule) -> list[PlannedStep]:
    return plan_steps(schedule.timesteps, request.guidance, components.boundary, request.guidance_interval)


def _prepared(program: Program, *arguments: Any) -> Generator[Event, None, Any]:
    """What `Program.prepare` returns, telling before it compiles, and again if a file made that unnecessary."""
    is_ready = program.is_ready(*arguments)
    if not is_ready:
        yield Compiling(program.name)
    shapes = program.prepare(*arguments)
    if not is_ready and program.is_loaded(*arguments):
        yield Compiling(program.name, is_loaded=True)
    return shapes


def _latents_like(request: GenerationRequest, components: Components, num_latent_frames: int | None = None):
    shape = list(latent_shape(request, components))
    shape[2] = num_latent_frames or shape[2]
    return jax.ShapeDtypeStruct(tuple(shape), jnp.float32)


def encode_conditions(run: Run) -> Generator[Event, None, Conditions]:
    """Text and pictures to what the denoiser needs, kept in the run's folder too."""
    yield Encoding()
    with run.clock.stage("encode"):
        tokens = tokenize(run.request, run.components)
        run.notes.extend(tokens.notes)
        conditions = encode(run.request, run.components, tokens)
        write_conditions(run.folder, run.request, conditions)
    return conditions


def _tokens_like(request: GenerationRequest, components: Components) -> TextTokens:
    """The request's tokens, or their shapes where there is no tokenizer to make them."""
    if components.text_encoder.has_tokenizer:
        return tokenize(request, components)
    return components.text_encoder.describe_tokens(2 if request.is_guided else 1)


def initial_noise(request: GenerationRequest, components: Components) -> np.ndarray:
    """The seed's noise, float32 in the latents' shape, as diffusers draws it on the CPU."""
    shape = latent_shape(request, components)
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(request.seed)).numpy()


def denoise(run: Run, conditions: Conditions, begun: Denoised | None = None) -> Generator[Event, None, Denoised]:
    """All steps, those left after `begun`, or those before a cancel. A step's picture is made while the next step runs."""
    request, components, clock = run.request, run.components, run.clock
    schedule = make_schedule(request.solver, request.steps, request.flow_shift)
    done = first = begun.steps_done if begun else 0
    state = begun.state if begun else start(jnp.asarray(initial_noise(request, components)))
    lane, cache, reused = None, None, 0
    told: Callable[[], Step] | None = None
    with _previews(run) as previews:
        for index, planned in list(enumerate(_plan(request, components, schedule)))[done:]:
            if run.is_cancelled():
                break
            programs = components.programs(planned.is_guided)
            if lane is None or (lane.expert, lane.programs) != (planned.expert, programs):
                reused += _reused(cache)
                lane = cache = None  # a lane's keys take much memory: the last one's go first
                with clock.stage("encode"):
                    lane = make_lane(request, components, conditions, planned.expert, planned.is_guided)
                state = jax.device_put(state, programs.layout.replicated)
                cache = empty_cache(lane) if request.step_cache else None
            started = time.monotonic()
            with clock.stage("denoise"):
                state, cache = _run_step(request, lane, state, step_inputs(schedule, index, planned.guidance), cache)
            if told is not None:
                yield told()
            with clock.stage("denoise"):
                clean = np.asarray(conditions.with_first_frame(state.clean), np.float32)
                moves = clock.seconds["denoise"] > ANIMATED_STEP_SECONDS * (index + 1 - first)
                preview = previews.begin(clean, index + 1, moves)
            done = index + 1
            told = functools.partial(_step_event, clock, schedule, first, index, time.monotonic() - started, preview)
        if told is not None:
            yield told()
    if request.step_cache:
        run.notes.append(f"The step cache spared most of {reused + _reused(cache)} of {schedule.steps} steps")
    return Denoised(state=state, steps_done=done)


def _previews(run: Run) -> StepPreviews:
    """On a CPU that plays several devices, two programs at once would wait for each other's threads."""
    programs, weights = run.programs, run.components.vae_weights
    devices = programs.layout.mesh.devices.ravel()
    beside = len(devices) == 1 or devices[0].platform != "cpu"
    fps = run.request.fps / run.request.geometry().temporal_scale
    return StepPreviews(lambda latents: programs.decode_first(weights, latents)[0], run.folder, fps, beside)


def _reused(cache: StepCache | None) -> int:
    """How many steps took what an earlier one had computed."""
    return 0 if cache is None else int(cache.reused)


def _run_step(
    request: GenerationRequest, lane: Lane, state: SamplerState, inputs: StepInputs, cache: StepCache | None
) -> tuple[SamplerState, StepCache | None]:
    arguments = (lane.weights, state, inputs, lane.text, lane.positions, lane.condition)
    if cache is None:
        return lane.programs.step(*arguments), None
    return lane.programs.cached_step(*arguments, cache, jnp.float32(request.step_cache))


def _step_event(clock: StageClock, schedule: Schedule, first: int, index: int, seconds: float, preview: Future[str]) -> Step:
    """Once the picture is there, with the seconds that are left: the steps since `first` for those to come, and the decoder's
    share. Raises: OSError where the picture could not be written."""
    with clock.stage("denoise"):
        name = preview.result()
    left = (schedule.steps - index - 1 + DECODE_SHARE * schedule.steps) * clock.seconds["denoise"] / (index + 1 - first)
    return Step(index + 1, schedule.steps, seconds, left, name)


def decode_frames(programs: Programs, weights: dict[str, jax.Array], latents: jax.Array) -> Iterator[jax.Array]:
    """Pixel frames in [-1, 1] of normalised latents, latent frame by latent frame: [1, 3, 1 or 4, height, width]."""
    frames, caches = programs.decode_first(weights, latents[:, :, :1])
    yield frames
    for index in range(1, latents.shape[2]):
        latent = latents[:, :, index : index + 1]
        frames, caches = programs.decode_next(weights, latent, caches)
        yield frames


def _decoded(run: Run, latents: jax.Array | np.ndarray) -> Iterator[np.ndarray]:
    """Pieces of the video as bytes, the time for them counted."""
    frames = decode_frames(run.programs, run.components.vae_weights, np.asarray(latents))
    while True:
        with run.clock.stage("decode"):
            piece = next(frames, None)
            if piece is None:
                return
            pixels = to_bytes(piece)
        yield pixels


def decode(run: Run, latents: jax.Array | np.ndarray) -> Iterator[Event]:
    """Decode with progress, write the mp4, end the job."""
    pieces: list[np.ndarray] = []
    done = 0
    for pixels in _decoded(run, latents):
        pieces.append(pixels)
        done += len(pixels)
        yield Decoding(done, run.request.num_frames)
        if run.is_cancelled():
            yield Cancelled(_write(run, pieces))
            return
    yield Finished(_write(run, pieces))


def _partial_video(run: Run, conditions: Conditions, denoised: Denoised) -> VideoResult | None:
    """The clean estimate at the moment of the cancel as a video, or None where no step was done."""
    if denoised.steps_done == 0:
        return None
    return _write(run, list(_decoded(run, conditions.with_first_frame(denoised.state.clean))))


def _write(run: Run, pieces: list[np.ndarray]) -> VideoResult:
    request, path = run.request, run.folder / "video.mp4"
    with run.clock.stage("decode"):
        count = write_video((frame for piece in pieces for frame in piece), path, fps=request.fps, request=request)
    return VideoResult(
        path=str(path),
        fps=request.fps,
        num_frames=count,
        width=request.width,
        height=request.height,
        seconds={name: round(value, 3) for name, value in run.clock.seconds.items()},
        request=request,
        versions=run.components.versions,
        notes=tuple(run.notes),
    )
