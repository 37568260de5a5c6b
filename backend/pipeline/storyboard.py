"""A storyboard: shot after shot, each from the last frames of the one before, in colours that stay; then all as one video.

Every shot has a folder of its own in the job's, with the files of its stages, its video, its last frames and, once it is whole,
its result. So a process that goes on after another begins with the first shot that is not whole, where that one had come.
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
    """The request's video, of one shot or of many, and larger if it is to be; see `generate`. Raises: as that, and as
    `make_larger`."""
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
    """Make all shots in `folder`, going on from what is there. Ends with Finished, or with Cancelled and what there is.

    On several hosts all do so, each in a folder of its own: what a shot starts from is the same on all, because all have the same
    frames; the first alone writes videos. What was whole before has come to the others with the job.
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
    """Passes the events of a shot on, with the places of its files in the story's folder; returns the final one."""
    request, place = story.request_of(index), story.folder_of(index)
    for event in make_shot(request, folder=place, grade=functools.partial(story.grade, index)):
        if event.is_final:
            return event
        if isinstance(event, Step) and event.preview:
            event = dataclasses.replace(event, preview=f"{place.relative_to(story.folder)}/{event.preview}")
        yield event
    raise AssertionError("a shot ended without a final event")
