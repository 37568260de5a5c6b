"""A storyboard: shot after shot, each from the last frames of the one before, in colours that stay; then all as one video.

Every shot has a folder of its own in the job's, with the files of its stages, its video, its last frames and, once it is whole,
its result. So a process that goes on after another begins with the first shot that is not whole, where that one had come.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from backend.contract.control import extends
from backend.contract.events import Cancelled, Event, Finished, ShotBegun, ShotMade, Step, VideoResult
from backend.contract.request import GenerationRequest, find_preset
from backend.contract.shots import CARRIED, FOLDER, FRAMES, LAST, LAST_FRAMES, LOOK, RESULT, VIDEO, shot_request
from backend.errors import RequestError, StudioError
from backend.files import remove_half_written, replacing
from backend.media.grading import Look, grade_frames
from backend.media.sound import MODEL_SOUND, Sound, joined, put_sound, read_sound
from backend.media.video import read_frames, write_exact_frames, write_video
from backend.pipeline.generate import generate
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.previews import PREVIEW_FOLDER
from backend.pipeline.profiling import Profile
from backend.pipeline.upscaling import make_larger
from backend.runtime.hosts import HERE


def make(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
) -> Iterator[Event]:
    """The request's video, of one shot or of many, and larger if it is to be; see `generate`. Raises: as that, and
    RequestError for a storyboard on several hosts; as `make_larger`."""
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
) -> Iterator[Event]:
    """Make all shots in `folder`, going on from what is there. Ends with Finished, or with Cancelled and what there is."""
    if not HERE.is_alone:
        raise RequestError("shots were given", "to a worker on several hosts, which makes single videos", "use one host")
    folder.mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)
    story, total, is_anew = Story(request, folder), len(request.shots), False
    for index in range(total):
        result = None if is_anew else story.result(index)
        if result is None:
            is_anew = True
            yield ShotBegun(index + 1, total)
            story.begin(index)
            make_shot = functools.partial(generate, loaded=loaded, is_cancelled=is_cancelled, profile=profile)
            final = yield from _events_of_shot(story, index, make_shot)
            if not isinstance(final, Finished):
                yield Cancelled(story.join(index + (final.result is not None), final.result))
                return
            result = story.keep(index, final.result)
        if not story.is_kept(index):
            yield ShotMade(index + 1, total, result)
    yield Finished(story.join(total, result))


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


class Story:
    """The files of a storyboard."""

    def __init__(self, request: GenerationRequest, folder: Path) -> None:
        self._request, self.folder, self._preset = request, folder, find_preset(request.preset)
        self._carries_clip = bool(extends(self._preset))

    def folder_of(self, index: int) -> Path:
        """Where the files of a shot are; `index` counts from 0."""
        return self.folder / FOLDER / str(index + 1)

    def request_of(self, index: int) -> GenerationRequest:
        """The shot's own request, which starts from the last frames of the one before."""
        return shot_request(self._request, index, self._preset, str(self.folder_of(index - 1)))

    def carried(self, index: int) -> int:
        """How many of the shot's first frames are the last ones of the shot before; 0 for the first shot."""
        return (self.request_of(index).overlap or 1) if index else 0

    def result(self, index: int) -> VideoResult | None:
        """The result of a whole shot of exactly this storyboard; None if there is none."""
        kept = self._read(index)
        names = (LAST, LAST_FRAMES) if self._carries_clip else (LAST,)
        if kept is None or not all((self.folder_of(index) / name).is_file() for name in names):
            return None
        result = VideoResult.from_json(kept["result"])
        if result.request.for_sharing() != self.request_of(index).for_sharing():
            return None
        return dataclasses.replace(result, path=str(self.folder_of(index) / VIDEO))

    def is_kept(self, index: int) -> bool:
        """Whether the shot was made for an earlier storyboard."""
        kept = self._read(index)
        return kept is not None and bool(kept.get("is_kept"))

    def begin(self, index: int) -> None:
        """Removes what was made after this shot, and this one if it is whole but another."""
        if self._read(index) is not None:
            shutil.rmtree(self.folder_of(index))
        for later in range(index + 1, len(self._request.shots)):
            shutil.rmtree(self.folder_of(later), ignore_errors=True)
        self.folder_of(index).mkdir(parents=True, exist_ok=True)

    def keep(self, index: int, result: VideoResult) -> VideoResult:
        """Notes that the shot is whole; its stages' files are no longer needed."""
        place = self.folder_of(index)
        if self._carries_clip and result.has_sound:
            self._put_sound_of_last_frames(index, result)
        with replacing(place / RESULT, is_durable=True) as part:
            part.write_text(json.dumps({"result": result.to_json()}, ensure_ascii=False), "utf-8")
        for file in place.glob("*.safetensors"):
            file.unlink()
        return result

    def _put_sound_of_last_frames(self, index: int, result: VideoResult) -> None:
        """Puts into the shot's last frames what is heard with them: a model that hears its clips goes on from there."""
        fps, request = self._request.fps, self._request
        seconds = min(max(CARRIED), result.num_frames) / fps
        sound = self._sound_of(index).part(result.num_frames / fps - seconds, seconds)
        with contextlib.suppress(StudioError):  # then the next shot's sound begins anew
            put_sound(self.folder_of(index) / LAST_FRAMES, sound, (request.width, request.height))

    def grade(self, index: int, pieces: list[np.ndarray]) -> list[np.ndarray]:
        """The shot's frames in the first shot's colours; writes its last frames, from which the next one starts."""
        frames = np.concatenate(pieces)
        if index:
            before = np.asarray(Image.open(self.folder_of(index - 1) / LAST).convert("RGB"))
            frames = grade_frames(frames, before, Look.read(self.folder_of(0) / LOOK), self.carried(index) - 1)
        else:
            Look.of(frames).write(self.folder_of(0) / LOOK)
        with replacing(self.folder_of(index) / FRAMES) as part, part.open("wb") as file:
            np.save(file, frames)
        if self._carries_clip:
            with replacing(self.folder_of(index) / LAST_FRAMES, is_durable=True) as part:
                write_exact_frames(frames[-max(CARRIED) :], part, fps=self._request.fps)
        with replacing(self.folder_of(index) / LAST, is_durable=True) as part:
            Image.fromarray(frames[-1]).save(part, format="PNG")
        return [frames]

    def join(self, count: int, last: VideoResult | None) -> VideoResult | None:
        """The first `count` shots as one video, of which `last` is the last one's result, and their seconds together; None for
        none. Each shot but the first begins with frames of the one before it, which are left out."""
        if count == 0:
            return None
        results = [self.result(index) for index in range(count - 1)]
        results.append(last or self.result(count - 1))
        path = self.folder / VIDEO
        num_frames = write_video(self._frames(count), path, fps=self._request.fps, request=self._request)
        notes = dict.fromkeys(note for result in results for note in result.notes)
        has_sound = any(result.has_sound for result in results)
        if has_sound:
            try:
                put_sound(path, self._sound(results), (self._request.width, self._request.height))
            except StudioError as error:
                has_sound, notes = False, {**notes, f"The video has no sound: {error.cause}": None}
        for previews in self.folder.glob(f"{FOLDER}/*/{PREVIEW_FOLDER}"):
            shutil.rmtree(previews)
        for name in (FRAMES, MODEL_SOUND):
            for file in self.folder.glob(f"{FOLDER}/*/{name}"):
                file.unlink()
        names = {name for result in results for name in result.seconds}
        return dataclasses.replace(
            results[-1],
            path=str(path),
            num_frames=num_frames,
            seconds={name: round(sum(result.seconds.get(name, 0.0) for result in results), 3) for name in names},
            request=self._request,
            notes=tuple(notes),
            has_sound=has_sound,
            flops={},
        )

    def _frames(self, count: int) -> Iterator[np.ndarray]:
        for index in range(count):
            exact = self.folder_of(index) / FRAMES
            frames = iter(np.load(exact, mmap_mode="r")) if exact.exists() else read_frames(self.folder_of(index) / VIDEO)
            yield from itertools.islice(frames, self.carried(index), None)

    def _sound(self, results: Sequence[VideoResult]) -> Sound:
        """The shots' sounds, one fading into the other within the frames that are left out; silence for a shot without one."""
        sounds = [self._sound_of(index) if result.has_sound else None for index, result in enumerate(results)]
        silence = next(sound for sound in sounds if sound is not None).part(0, 0)
        fps = self._request.fps
        parts = [(sound or silence).part(0, result.num_frames / fps) for result, sound in zip(results, sounds, strict=True)]
        return joined(parts, [self.carried(index) / fps for index in range(1, len(parts))])

    def _sound_of(self, index: int) -> Sound:
        exact = self.folder_of(index) / MODEL_SOUND
        return Sound.read(exact) if exact.exists() else read_sound(self.folder_of(index) / VIDEO)

    def _read(self, index: int) -> dict | None:
        try:
            return json.loads((self.folder_of(index) / RESULT).read_text("utf-8"))
        except (OSError, ValueError):
            return None
