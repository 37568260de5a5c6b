"""Generate an instant draft: few steps and no previews. The result is in the last event, and no file is written."""

import base64
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from backend.errors import Stopped
from backend.media.animation import encode_animation
from backend.models.model import VIDEO
from backend.pipeline.decoding import decode_pieces, frames_to_uint8
from backend.pipeline.denoising import finish_latents
from backend.pipeline.denoising_loop import Denoising
from backend.pipeline.encoding import compute_conditions
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.preparing import prepare
from backend.pipeline.run import Run
from backend.schemas.events import Cancelled, DraftFinished, Encoding, Event, Step
from backend.schemas.request import GenerationRequest


def generate_draft(
    request: GenerationRequest, loaded: LoadedModel, folder: Path, is_cancelled: Callable[[], bool]
) -> Generator[Event]:
    """Generate the draft of `request`, whose inputs are in `folder`. Ends with DraftFinished, or with Cancelled after the current
    step or piece. Raises: ModelError if the model is of another kind than the request's preset, or a LoRA changes nothing."""
    run = Run(request=request, loaded=loaded, folder=folder, is_cancelled=is_cancelled)
    yield from prepare(run)

    def stop_if_cancelled() -> None:
        if is_cancelled():
            raise Stopped

    try:
        stop_if_cancelled()
        yield Encoding()
        conditions = compute_conditions(run)
        loop, total = Denoising(run, conditions), run.clock.seconds
        while loop.steps_done < loop.total_steps:
            stop_if_cancelled()
            before = total["denoise"]
            loop.step()
            with run.clock.measure("denoise"):
                loop.wait_for_devices()  # after each step, so that no dispatched step delays a cancel
            seconds = total["denoise"] - before
            yield Step(loop.steps_done, loop.total_steps, seconds, seconds * (loop.total_steps - loop.steps_done))
        latents = finish_latents(run, conditions, loop.current_state())
        del loop, conditions  # frees the memory of the denoising for the decoder
        pieces = []
        for frames, _ in decode_pieces(run, np.asarray(latents[VIDEO])):
            stop_if_cancelled()
            pieces.append(frames_to_uint8(frames))
    except Stopped:
        yield Cancelled(None)
        return
    animation = encode_animation(np.concatenate(pieces)[: request.num_frames], request.fps)
    yield DraftFinished(base64.b64encode(animation).decode())
