"""Generate an instant draft: few steps and no previews. The result is in the last event, and no file is written."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from backend.errors import Stopped
from backend.media.animation import encode_animation
from backend.models.model import VIDEO, Latents
from backend.pipeline.decoding import decode_frames
from backend.pipeline.denoising import finish_latents
from backend.pipeline.denoising_loop import Denoising
from backend.pipeline.encoding import compute_conditions
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.preparing import prepare
from backend.pipeline.previews import frames_to_uint8
from backend.pipeline.run import Run
from backend.schemas.events import Cancelled, DraftFinished, Encoding, Event, Step
from backend.schemas.request import GenerationRequest


def generate_draft(
    request: GenerationRequest, loaded: LoadedModel, folder: Path, is_cancelled: Callable[[], bool]
) -> Generator[Event]:
    """Generate the draft of `request`. `folder` contains the request's inputs.

    Ends with DraftFinished. After a cancel, ends with Cancelled once the current step is done or the current piece is decoded.

    Raises: ModelError if the model is of another kind than the request's preset, or a LoRA changes nothing.
    """
    run = Run(request=request, loaded=loaded, folder=folder, is_cancelled=is_cancelled)
    yield from prepare(run)
    try:
        _stop_if_cancelled(run)
        yield Encoding()
        latents = yield from _denoise(run)
        frames = _decode(run, latents)
    except Stopped:
        yield Cancelled(None)
    else:
        yield DraftFinished(base64.b64encode(encode_animation(frames, request.fps)).decode())


def _denoise(run: Run) -> Generator[Event, None, Latents]:
    """Run all steps, and wait for each step, so that no dispatched step delays a cancel. Raises: Stopped."""
    conditions = compute_conditions(run)
    loop, total = Denoising(run, conditions), run.clock.seconds
    while loop.steps_done < loop.total_steps:
        _stop_if_cancelled(run)
        before = total["denoise"]
        loop.step()
        with run.clock.measure("denoise"):
            loop.wait_for_devices()
        seconds = total["denoise"] - before
        yield Step(loop.steps_done, loop.total_steps, seconds, seconds * (loop.total_steps - loop.steps_done))
    return finish_latents(run, conditions, loop.current_state())


def _decode(run: Run, latents: Latents) -> np.ndarray:
    """Return all frames, uint8 [F, height, width, 3]. Raises: Stopped."""
    pieces = []
    for frames in decode_frames(run, np.asarray(latents[VIDEO])):
        _stop_if_cancelled(run)
        pieces.append(frames_to_uint8(frames))
    return np.concatenate(pieces)[: run.request.num_frames]


def _stop_if_cancelled(run: Run) -> None:
    if run.is_cancelled():
        raise Stopped
