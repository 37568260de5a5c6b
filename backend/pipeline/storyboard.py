"""Generate a storyboard: shot after shot, each from the previous shot's last frames, with matched colors, joined into one video.
A process that resumes the job starts with the first unfinished shot, where that shot stopped."""

import dataclasses
import functools
from collections.abc import Callable, Generator
from pathlib import Path

from backend.files import remove_half_written
from backend.pipeline.generate import generate
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.profiling import Profile
from backend.pipeline.storyboard_loop import StoryboardFiles
from backend.pipeline.upscaling import upscale_video
from backend.runtime.context import RuntimeContext
from backend.schemas.events import Cancelled, Event, Finished, ShotFinished, ShotStarted, Step
from backend.schemas.request import GenerationRequest


def generate_video(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
    runtime: RuntimeContext | None = None,
) -> Generator[Event]:
    """Generate the request's video, of one shot or of many, and upscale it if requested. Only upscaling uses `runtime`. See
    `generate` for the other arguments. Raises: the errors of `generate` and `upscale_video`."""
    if request.upscale:
        smaller = functools.partial(generate_video, loaded=loaded, folder=folder, is_cancelled=is_cancelled, profile=profile)
        return upscale_video(request, folder, is_cancelled, smaller, runtime)
    if request.shots:
        return generate_storyboard(request, loaded, folder, is_cancelled, profile)
    return generate(request, loaded, folder, is_cancelled, profile)


def generate_storyboard(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
) -> Generator[Event]:
    """Generate all shots in `folder`, and resume from shots in it. Ends with Finished, or with Cancelled and the shots so far.
    With several hosts, each host writes the previous shot's last frames to its own folder, so that all start a shot from the same
    frames. Only the first host writes videos. Shots that were finished earlier are sent to the other hosts with the job."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)
    files, total = StoryboardFiles(request, folder, loaded.runtime.place.is_first), len(request.shots)
    for index in range(total):
        result, place = files.read_result(index), files.shot_folder(index)
        if result is None and files.given_video(index) is not None:
            result = files.use_given_video(index)
        if result is None:
            yield ShotStarted(index + 1, total)
            files.clear_shot(index)
            own, match_colors = files.request_for_shot(index), functools.partial(files.match_colors, index)
            for event in generate(own, loaded, place, is_cancelled, profile, match_colors):
                if event.is_final:
                    break
                if isinstance(event, Step) and event.preview:
                    event = dataclasses.replace(event, preview=f"{place.relative_to(folder)}/{event.preview}")
                yield event
            else:
                raise AssertionError("a shot ended without a final event")
            if not isinstance(event, Finished):
                last = event.result if isinstance(event, Cancelled) else None
                yield Cancelled(files.join_shots(index + (last is not None), last))
                return
            result = files.mark_finished(index, event.result)
        if not files.is_imported(index):
            yield ShotFinished(index + 1, total, result)
    whole = files.join_shots(total, result)
    assert whole is not None, "a storyboard has shots"
    yield Finished(whole)
