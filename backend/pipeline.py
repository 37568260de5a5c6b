"""A request to a video: encode -> denoise -> decode, yielding an event wherever there is something to tell."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file

from backend.attention_processor import Positions
from backend.components import Components, Programs, StepInputs
from backend.denoiser import FirstFrame, TextContext
from backend.events import Cancelled, Compiling, Decoding, Encoding, Event, Finished, Step, VideoResult
from backend.image_input import crop_to, load_checked_image
from backend.program import Program
from backend.request import GenerationRequest
from backend.sampler import SamplerState, Schedule, make_schedule, start
from backend.text_encoder import TextTokens, padded_embeddings
from backend.video_file import write_video

PREVIEW_FOLDER = "previews"
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
            self.seconds[name] += time.monotonic() - started


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the denoiser is told besides the noisy latents."""

    text: TextContext
    positions: Positions
    first_frame: FirstFrame | None


def generate(
    request: GenerationRequest, components: Components, folder: Path, is_cancelled: Callable[[], bool]
) -> Iterator[Event]:
    """Make the request's video in `folder`. Ends with Finished, or with Cancelled and what there was by then."""
    clock = StageClock()
    (folder / PREVIEW_FOLDER).mkdir(parents=True, exist_ok=True)
    with clock.stage("compile"):
        for event in warm_up(components, request):
            yield event
            if is_cancelled():
                yield Cancelled(None)
                return
    yield Encoding()
    with clock.stage("encode"):
        conditions = _encode(request, components, folder)
    state = None
    for event, state in _denoise(request, components, conditions, folder, clock, is_cancelled):  # noqa: B007 - the last one counts
        yield event
    if is_cancelled():
        yield Cancelled(_partial_video(request, components, conditions, state, folder, clock))
        return
    latents = _final_latents(state.sample, conditions)
    save_file({"latents": np.asarray(latents)}, folder / "stage2_latents.safetensors")
    yield from _decode_to_file(request, components, latents, folder, clock, is_cancelled)


def warm_up(components: Components, request: GenerationRequest) -> Iterator[Event]:
    """Compile what the request needs and is not there yet, telling each program's name beforehand.

    Works on described components too, whose weights are shapes and whose devices are not here.
    """
    programs, tokens = _programs(request, components), _tokens_like(request, components)
    embedded = yield from _prepared(programs.embed_text, components.text_weights, tokens.ids, tokens.mask)
    context = yield from _prepared(programs.prepare_text, components.denoiser_weights, embedded, tokens.bias)
    if request.task == "i2v":
        image = jax.ShapeDtypeStruct((1, 3, 1, request.height, request.width), components.dtype)
        yield from _prepared(programs.encode_image, components.vae_weights, image)
    yield from _warm_up_step(components, request, context)
    first_latents = _latents_like(request, components, num_latent_frames=1)
    _, caches = yield from _prepared(programs.decode_first, components.vae_weights, first_latents)
    if request.num_frames > 1:
        yield from _prepared(programs.decode_next, components.vae_weights, first_latents, caches)


def _warm_up_step(components: Components, request: GenerationRequest, text: TextContext) -> Iterator[Event]:
    latents = _latents_like(request, components)
    first = _latents_like(request, components, 1) if request.task == "i2v" else None
    programs = _programs(request, components)
    positions = programs.denoiser.describe_positions(latents.shape)
    arguments = step_arguments(request, components.denoiser_weights, latents, text, positions, first)
    yield from _prepared(programs.step, *arguments)


def step_arguments(request: GenerationRequest, weights, latents, text, positions, first_latents) -> tuple:
    """What the step's program takes, for compiling: `latents` and `first_latents` (or None) by shape, the rest as it comes."""
    state = SamplerState(sample=latents, before=latents, clean=latents, older=latents)
    inputs = step_inputs(make_schedule(request.solver, 1, request.flow_shift), 0, request.guidance[0])
    first = None if first_latents is None else FirstFrame(latents=first_latents)
    return weights, state, inputs, text, positions, first


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
    shape = list(request.geometry().latent_shape(components.guided.vae.latent_channels))
    shape[2] = num_latent_frames or shape[2]
    return jax.ShapeDtypeStruct(tuple(shape), jnp.float32)


def _programs(request: GenerationRequest, components: Components) -> Programs:
    return components.guided if request.is_guided else components.unguided


def _tokenize(request: GenerationRequest, components: Components) -> TextTokens:
    prompts = [request.prompt, request.negative_prompt] if request.is_guided else [request.prompt]
    return components.text_encoder.tokenize(prompts)


def _tokens_like(request: GenerationRequest, components: Components) -> TextTokens:
    """The request's tokens, or their shapes where there is no tokenizer to make them."""
    if components.text_encoder.has_tokenizer:
        return _tokenize(request, components)
    return components.text_encoder.describe_tokens(2 if request.is_guided else 1)


def _positions(request: GenerationRequest, components: Components) -> Positions:
    programs = _programs(request, components)
    return programs.denoiser.positions(request.geometry().latent_shape(programs.vae.latent_channels))


def _encode(request: GenerationRequest, components: Components, folder: Path) -> Conditions:
    """Text and image to what the denoiser needs; the embeddings are kept in the job's folder."""
    programs, tokens = _programs(request, components), _tokenize(request, components)
    embeddings = programs.embed_text(components.text_weights, tokens.ids, tokens.mask)
    _save_embeddings(request, embeddings, folder)
    text = programs.prepare_text(components.denoiser_weights, embeddings, tokens.bias)
    first_frame = FirstFrame(latents=_encode_image(request, components)) if request.task == "i2v" else None
    return Conditions(text=text, positions=_positions(request, components), first_frame=first_frame)


def _save_embeddings(request: GenerationRequest, embeddings: jax.Array, folder: Path) -> None:
    values = padded_embeddings(embeddings)
    names = ("prompt_embeds", "negative_prompt_embeds")
    save_file({name: value[None] for name, value in zip(names, values, strict=False)}, folder / "stage1_embeddings.safetensors")
    config = {
        "prompt": request.prompt, "negative_prompt": request.negative_prompt, "width": request.width,
        "height": request.height, "frames": request.num_frames, "fps": request.fps,
        "num_inference_steps": request.steps, "guidance_scale": request.guidance[0],
        "flow_shift": request.flow_shift, "seed": request.seed, "model_id": request.preset,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), "utf-8")


def _encode_image(request: GenerationRequest, components: Components) -> jax.Array:
    """Normalised latents [1, C, 1, H, W] of the request's image, cropped to the video's size."""
    image = crop_to(load_checked_image(request.image), request.width, request.height, request.image_focus)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None, :, None] / 127.5 - 1.0
    programs = _programs(request, components)
    latents = programs.encode_image(components.vae_weights, jnp.asarray(pixels, components.dtype))
    return latents.astype(jnp.float32)


def initial_noise(request: GenerationRequest, components: Components) -> np.ndarray:
    """The seed's noise, float32 in the latents' shape, as diffusers draws it on the CPU."""
    shape = request.geometry().latent_shape(components.guided.vae.latent_channels)
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(request.seed)).numpy()


def step_inputs(schedule: Schedule, index: int, guidance: float) -> StepInputs:
    """One step's row of the schedule."""
    return StepInputs(
        timestep=jnp.asarray(schedule.timesteps[index]),
        sigma=jnp.asarray(schedule.sigmas[index]),
        corrector=jnp.asarray(schedule.corrector[index]),
        predictor=jnp.asarray(schedule.predictor[index]),
        guidance=jnp.asarray(guidance, jnp.float32),
    )


def _denoise(
    request: GenerationRequest,
    components: Components,
    conditions: Conditions,
    folder: Path,
    clock: StageClock,
    is_cancelled: Callable[[], bool],
) -> Iterator[tuple[Event, SamplerState]]:
    """All steps, or those before a cancel."""
    programs = _programs(request, components)
    schedule = make_schedule(request.solver, request.steps, request.flow_shift)
    state = start(jnp.asarray(initial_noise(request, components)))
    for index in range(schedule.steps):
        if is_cancelled():
            return
        started = time.monotonic()
        inputs = step_inputs(schedule, index, request.guidance[0])
        with clock.stage("denoise"):
            state = programs.step(
                components.denoiser_weights, state, inputs, conditions.text, conditions.positions, conditions.first_frame
            )
            preview = _write_preview(programs, components, _final_latents(state.clean, conditions), folder, index + 1)
        seconds = time.monotonic() - started
        left = (schedule.steps - index - 1) * clock.seconds["denoise"] / (index + 1)
        left += DECODE_SHARE * schedule.steps * clock.seconds["denoise"] / (index + 1)
        yield Step(index + 1, schedule.steps, seconds, left, preview), state


def _final_latents(latents: jax.Array, conditions: Conditions) -> jax.Array:
    """Latents with the image's own frame in the first place, where there is one."""
    if conditions.first_frame is None:
        return latents
    return jnp.concatenate([conditions.first_frame.latents, latents[:, :, 1:]], axis=2)


def _write_preview(programs: Programs, components: Components, clean: jax.Array, folder: Path, index: int) -> str:
    """The first frame of the current clean estimate as a picture; its name inside the job's folder."""
    frames, _ = programs.decode_first(components.vae_weights, clean[:, :, :1])
    name = f"{PREVIEW_FOLDER}/step-{index:03d}.png"
    with _replacing(folder / name) as part:
        Image.fromarray(_to_bytes(frames)[0]).save(part, format="PNG", compress_level=1)
    return name


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A place to write to that takes the name `path` once it is whole."""
    part = path.with_suffix(".part")
    yield part
    part.replace(path)


def _to_bytes(frames: jax.Array) -> np.ndarray:
    """uint8 [F, H, W, 3] from [1, 3, F, H, W] in [-1, 1]."""
    values = np.asarray(frames, np.float32)[0].transpose(1, 2, 3, 0)
    return np.round((values + 1) * 127.5).clip(0, 255).astype(np.uint8)


def decode_frames(programs: Programs, weights: dict[str, jax.Array], latents: jax.Array) -> Iterator[jax.Array]:
    """Pixel frames in [-1, 1] of normalised latents, latent frame by latent frame: [1, 3, 1 or 4, height, width]."""
    frames, caches = programs.decode_first(weights, latents[:, :, :1])
    yield frames
    for index in range(1, latents.shape[2]):
        latent = latents[:, :, index : index + 1]
        frames, caches = programs.decode_next(weights, latent, caches)
        yield frames


def _decoded(request: GenerationRequest, components: Components, latents: jax.Array) -> Iterator[jax.Array]:
    return decode_frames(_programs(request, components), components.vae_weights, latents)


def _decode_to_file(
    request: GenerationRequest,
    components: Components,
    latents: jax.Array,
    folder: Path,
    clock: StageClock,
    is_cancelled: Callable[[], bool],
) -> Iterator[Event]:
    """Decode with progress, write the mp4, end the job."""
    pieces: list[np.ndarray] = []
    done = 0
    for frames in _timed(_decoded(request, components, latents), clock):
        pieces.append(_to_bytes(frames))
        done += len(pieces[-1])
        yield Decoding(done, request.num_frames)
        if is_cancelled():
            yield Cancelled(_write(request, components, pieces, folder, clock))
            return
    yield Finished(_write(request, components, pieces, folder, clock))


def _timed(frames: Iterator[jax.Array], clock: StageClock) -> Iterator[jax.Array]:
    while True:
        with clock.stage("decode"):
            piece = next(frames, None)
            if piece is None:
                return
            piece.block_until_ready()
        yield piece


def _partial_video(request, components, conditions, state: SamplerState | None, folder: Path, clock: StageClock):
    """The clean estimate at the moment of the cancel as a video, or None where no step was done."""
    if state is None:
        return None
    latents = _final_latents(state.clean, conditions)
    pieces = [_to_bytes(frames) for frames in _timed(_decoded(request, components, latents), clock)]
    return _write(request, components, pieces, folder, clock)


def _write(request: GenerationRequest, components: Components, pieces: list[np.ndarray], folder: Path, clock: StageClock):
    path = folder / "video.mp4"
    with clock.stage("decode"):
        count = write_video((frame for piece in pieces for frame in piece), path, fps=request.fps, request=request)
    return VideoResult(
        path=str(path), fps=request.fps, num_frames=count, width=request.width, height=request.height,
        seconds={name: round(value, 3) for name, value in clock.seconds.items()},
        request=request, versions=components.versions,
    )  # fmt: skip
