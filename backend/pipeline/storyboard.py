"""Generate a storyboard: shot after shot, each from the previous shot's last frames, with matched colors, joined into one video.

Each shot has its own folder in the job's folder, with its stage files, its video, its last frames and, once it is finished, its
result. A process that resumes the job starts with the first unfinished shot, where that shot stopped.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator
from pathlib import Path

from backend.files import remove_half_written
from backend.pipeline.generate import generate
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.profiling import Profile
from backend.pipeline.storyboard_loop import Story
from backend.pipeline.upscaling import make_larger
from backend.schemas.events import Cancelled, Event, Finished, ShotFinished, ShotStarted, Step
from backend.schemas.request import GenerationRequest


def make(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
) -> Generator[Event]:
    """Generate the request's video, of one shot or of many, and upscale it if requested.

    See `generate`. Raises: the errors of `generate` and `upscale_video`.
    """
    if request.upscale:
        smaller = functools.partial(make, loaded=loaded, folder=folder, is_cancelled=is_cancelled, profile=profile)
        return make_larger(request, folder, is_cancelled, smaller)
    if request.shots:
        return storyboard(request, loaded, folder, is_cancelled, profile)
    return generate(request, loaded, folder, is_cancelled, profile)


def storyboard(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
) -> Generator[Event]:
    """Generate all shots in `folder`, and resume from shots in it. Ends with Finished, or with Cancelled and the shots so far.

    On several hosts all generate, each in its own folder. All start a shot from the same frames, because all have the same
    frames. Only the first host writes videos. Shots that were already finished reach the other hosts with the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)
    story, total = Story(request, folder), len(request.shots)
    for index in range(total):
        result = story.result(index)
        if result is None and story.video_of(index) is not None:
            result = story.take(index)
        if result is None:
            yield ShotStarted(index + 1, total)
            story.begin(index)
            make_shot = functools.partial(generate, loaded=loaded, is_cancelled=is_cancelled, profile=profile)
            final = yield from _events_of_shot(story, index, make_shot)
            if not isinstance(final, Finished):
                last = final.result if isinstance(final, Cancelled) else None
                yield Cancelled(story.join(index + (last is not None), last))
                return
            result = story.keep(index, final.result)
        if not story.is_kept(index):
            yield ShotFinished(index + 1, total, result)
    whole = story.join(total, result)
    assert whole is not None, "a storyboard has shots"
    yield Finished(whole)


def _events_of_shot(story: Story, index: int, make_shot: Callable) -> Generator[Event, None, Event]:
    """Yield the events of a shot, with previews' paths relative to the storyboard's folder. Return the final event."""
    request, place = story.request_of(index), story.folder_of(index)
    for event in make_shot(request, folder=place, grade=functools.partial(story.grade, index)):
        if event.is_final:
            return event
        if isinstance(event, Step) and event.preview:
            event = dataclasses.replace(event, preview=f"{place.relative_to(story.folder)}/{event.preview}")
        yield event
    raise AssertionError("a shot ended without a final event")
