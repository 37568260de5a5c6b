"""Generate a video: the list of its stages, and the loop over the stages that remain. Yields events as progress reports."""

import dataclasses
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

from backend.errors import Stopped
from backend.files import remove_half_written
from backend.models.model import Stage
from backend.pipeline.decoding import decode
from backend.pipeline.denoising import denoise_video
from backend.pipeline.encoding import encode_conditions
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.preparing import prepare
from backend.pipeline.profiling import Profile
from backend.pipeline.run import PartialVideo, Run
from backend.pipeline.stage_files import adopt_files, read_conditions, read_latents
from backend.schemas.events import Cancelled, Event, Finished
from backend.schemas.request import GenerationRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoStage:
    """One stage of a video. `name` selects the networks to load and the programs to compile. `run` gets the previous stage's
    result, yields events, and stores and returns the stage's result. It resumes from an unfinished result, and raises Stopped or
    PartialVideo after a cancel. `read` reads the stored result, None if no result fits the request."""

    name: Stage
    run: Callable[[Run, Any], Generator[Event, None, Any]]
    read: Callable[[Path, GenerationRequest], Any] | None = None


VIDEO_STAGES = (
    VideoStage(name="encode", run=lambda run, _: encode_conditions(run), read=read_conditions),
    VideoStage(name="denoise", run=denoise_video, read=read_latents),
    VideoStage(name="decode", run=decode),
)


def generate(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
    match_colors: Callable[[list[np.ndarray]], list[np.ndarray]] = list,
) -> Generator[Event]:
    """Generate the request's video in `folder`, and resume from stage files in it. Ends with Finished, or with Cancelled and the
    unfinished video. Closing the iterator saves the work so far. `match_colors`: see `Run`. Raises: ModelError if the model is of
    another kind than the request's preset, or a LoRA changes nothing."""
    run = Run(
        request=request, loaded=loaded, folder=folder, is_cancelled=is_cancelled, profile=profile, match_colors=match_colors
    )
    folder.mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)
    run.clock.before = adopt_files(folder, loaded.source)
    result: Any = None
    stages = VIDEO_STAGES
    for index, stage in reversed([*enumerate(VIDEO_STAGES, 1)]):  # continue after the last stored result
        stored = None if stage.read is None else stage.read(folder, request)
        if stored is not None:
            result, stages = stored, VIDEO_STAGES[index:]
            break
    yield from prepare(run, [stage.name for stage in stages])
    if is_cancelled():
        yield Cancelled(None)
        return
    try:
        for stage in stages:
            result = yield from stage.run(run, result)
    except PartialVideo as stop:
        yield Cancelled(stop.result)
    except Stopped:
        yield Cancelled(None)
    else:
        yield Finished(result)
