"""The files of a storyboard. Each shot has its own folder, with its stage files, its video, its last frames and its result."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from backend.errors import StudioError
from backend.files import replace_file
from backend.media.audio_inputs import MAX_RATE, read_at_rate
from backend.media.clips import read_clip, read_clip_facts
from backend.media.color_matching import Look, grade_frames
from backend.media.film import clip_audio_reader, cross_fade, mix_film_audio
from backend.media.sound import MODEL_SOUND, Sound, read_sound, replace_audio
from backend.media.video import read_frames, write_exact_frames, write_video
from backend.pipeline.previews import PREVIEW_FOLDER
from backend.runtime.hosts import THIS_HOST
from backend.schemas.clip import Part
from backend.schemas.control import extend_directions
from backend.schemas.events import VideoResult
from backend.schemas.film import Piece, Track, count_film_frames, plan_pieces
from backend.schemas.request import GenerationRequest, find_preset
from backend.schemas.shots import (
    FOLDER,
    FRAMES,
    LAST,
    LAST_FRAMES,
    LOOK,
    OVERLAP_LENGTHS,
    RESULT,
    VIDEO,
    continues_previous,
    end_frame,
    num_overlap_frames,
    shot_length,
    shot_request,
    starts_fresh,
)
from backend.schemas.sound import SoundPart

LOOK_FRAMES = 81  # enough for the colors of an uploaded video, which may be long


class StoryboardFiles:
    def __init__(self, request: GenerationRequest, folder: Path) -> None:
        self._request, self.folder, self._preset = request, folder, find_preset(request.preset)
        self._extends_clips = bool(extend_directions(self._preset))

    def shot_folder(self, index: int) -> Path:
        """Return the folder of a shot. `index` counts from 0."""
        return self.folder / FOLDER / str(index + 1)

    def request_for_shot(self, index: int) -> GenerationRequest:
        """Return the shot's own request, which starts from the previous shot's last frames. For a shot with a given video,
        return the storyboard's request."""
        if self.given_video(index) is not None:
            return self._request
        return shot_request(self._request, index, self._preset, str(self.shot_folder(index - 1)))

    def given_video(self, index: int) -> Path | None:
        """Return the video file of a shot that needs no generation, None for other shots."""
        place = self._request.shots[index].video
        return None if place is None else Path(self._request.shot_videos[place])

    def read_result(self, index: int) -> VideoResult | None:
        """Read the result of a finished shot of exactly this storyboard, None if it is not finished."""
        kept = self._read_record(index)
        if kept is None or not all((self.shot_folder(index) / name).is_file() for name in self._required_files(index)):
            return None
        result, own = VideoResult.from_json(kept["result"]), self.request_for_shot(index).for_sharing()
        made = result.request.for_sharing()
        if kept.get("is_kept"):  # the characters may have changed
            made, own = ({name: value for name, value in one.items() if name != "references"} for one in (made, own))
        if made != own:
            return None
        return dataclasses.replace(result, path=str(self.shot_folder(index) / VIDEO))

    def is_kept(self, index: int) -> bool:
        """Return whether the shot was finished for an earlier storyboard."""
        kept = self._read_record(index)
        return kept is not None and bool(kept.get("is_kept"))

    def clear_shot(self, index: int) -> None:
        """Delete this shot if it was finished for another request, and the later shots that continue it."""
        if self._read_record(index) is not None:
            shutil.rmtree(self.shot_folder(index))
        for later in itertools.takewhile(self._continues_previous, range(index + 1, len(self._request.shots))):
            shutil.rmtree(self.shot_folder(later), ignore_errors=True)
        self.shot_folder(index).mkdir(parents=True, exist_ok=True)

    def use_given_video(self, index: int) -> VideoResult:
        """Use the given video of a shot as its result. Raises: ClipError."""
        shutil.rmtree(self.shot_folder(index), ignore_errors=True)
        self.shot_folder(index).mkdir(parents=True)
        names, end = self._required_files(index), end_frame(self._request, index)
        if LOOK in names:
            some = itertools.islice(self._read_video(index, 0, end), 0, None, -(-end // LOOK_FRAMES))
            Look.from_frames(np.stack(list(some))).write(self.shot_folder(index) / LOOK)
        if LAST in names:
            first = max(0, end - max(OVERLAP_LENGTHS))
            self._write_last(index, np.stack(list(self._read_video(index, first, end - first))))
        video = self.given_video(index)
        assert video is not None, "the shot has a given video"
        result = VideoResult(
            path=str(self.shot_folder(index) / VIDEO),
            fps=self._request.fps,
            num_frames=shot_length(self._request, index),
            width=self._request.width,
            height=self._request.height,
            seconds={},
            request=self._request,
            versions={},
            has_sound=self._request.keeps_sound and read_clip_facts(video).has_sound,
        )
        return self._write_result(index, result, is_kept=True)

    def mark_finished(self, index: int, result: VideoResult) -> VideoResult:
        """Mark the shot as finished, and delete its stage files."""
        place = self.shot_folder(index)
        if self._extends_clips and (place / MODEL_SOUND).exists():
            self._add_audio_to_last_frames(index)
        self._write_result(index, result)
        for file in place.glob("*.safetensors"):
            file.unlink()
        return result

    def match_colors(self, index: int, pieces: list[np.ndarray]) -> list[np.ndarray]:
        """Match the shot's colors to the first shot of its scene, and write its last frames, from which the next shot starts."""
        frames, request = np.concatenate(pieces), self._request
        if continues_previous(request, index):
            before = np.asarray(Image.open(self.shot_folder(index - 1) / LAST).convert("RGB"))
            look = Look.read(self.shot_folder(self._first_shot_of_scene(index)) / LOOK)
            frames = grade_frames(frames, before, look, num_overlap_frames(request, index, self._preset) - 1)
        else:
            Look.from_frames(frames).write(self.shot_folder(index) / LOOK)
        if THIS_HOST.is_first:
            with replace_file(self.shot_folder(index) / FRAMES) as part, part.open("wb") as file:
                np.save(file, frames)
        self._write_last(index, frames[: end_frame(request, index)])
        return [frames]

    def join_shots(self, count: int, last: VideoResult | None) -> VideoResult | None:
        """Join the first `count` shots into one video, and add up their seconds. None if there are no shots.

        `last` is the result of the last shot. Frames that repeat the previous shot's last frames are left out.
        """
        if count == 0:
            return None
        found = [*(self.read_result(index) for index in range(count - 1)), last or self.read_result(count - 1)]
        results = [result for result in found if result is not None]
        assert len(results) == count, "these shots are finished"
        pieces = plan_pieces(self._request, self._preset, count)
        num_frames, has_sound, notes = count_film_frames(pieces), False, [note for result in results for note in result.notes]
        if THIS_HOST.is_first:
            has_sound = self._write_joined_video(pieces, results, notes)
        for previews in self.folder.glob(f"{FOLDER}/*/{PREVIEW_FOLDER}"):
            shutil.rmtree(previews)
        for name in (FRAMES, MODEL_SOUND):
            for file in self.folder.glob(f"{FOLDER}/*/{name}"):
                file.unlink()
        names = {name for result in results for name in result.seconds}
        return dataclasses.replace(
            results[-1],
            path=str(self.folder / VIDEO),
            num_frames=num_frames,
            seconds={name: round(sum(result.seconds.get(name, 0.0) for result in results), 3) for name in names},
            request=self._request,
            notes=tuple(dict.fromkeys(notes)),
            has_sound=has_sound,
            flops={},
        )

    def _write_joined_video(self, pieces: Sequence[Piece], results: Sequence[VideoResult], notes: list[str]) -> bool:
        """Write the joined video. Return whether it has audio. If the audio cannot be created, add a note. Raises:
        VideoFileError."""
        path = self.folder / VIDEO
        parts = (self._read_shot_frames(index, piece) for index, piece in enumerate(pieces))
        frames = cross_fade(parts, [piece.fade for piece in pieces])
        write_video(frames, path, fps=self._request.fps, request=self._request)
        try:
            sound = self._mix_audio(pieces, results)
            if sound is not None:
                replace_audio(path, sound, (self._request.width, self._request.height))
            return sound is not None
        except StudioError as error:
            notes.append(f"The video has no audio: {error.cause}")
            return False

    def _continues_previous(self, index: int) -> bool:
        return continues_previous(self._request, index)

    def _first_shot_of_scene(self, index: int) -> int:
        """Return the first shot of this shot's scene."""
        return next(one for one in range(index, -1, -1) if starts_fresh(self._request, one))

    def _required_files(self, index: int) -> tuple[str, ...]:
        """Return the files that a finished shot must have for the shots that continue it."""
        shots, made = self._request.shots, self.given_video(index) is not None
        scene = list(itertools.takewhile(lambda one: not starts_fresh(self._request, one), range(index + 1, len(shots))))
        is_first = starts_fresh(self._request, index)
        look = (LOOK,) if made and is_first and any(map(self._continues_previous, scene)) else ()
        if made and not (scene and self._continues_previous(index + 1)):
            return look
        return (*look, LAST, LAST_FRAMES) if self._extends_clips else (*look, LAST)

    def _write_last(self, index: int, frames: np.ndarray) -> None:
        """Write the end of `frames`, from which the next shot starts: an image, and a short clip if the model extends clips.
        `frames` end at the cut."""
        if self._extends_clips:
            with replace_file(self.shot_folder(index) / LAST_FRAMES, is_durable=True) as part:
                write_exact_frames(list(frames[-max(OVERLAP_LENGTHS) :]), part, fps=self._request.fps)
        with replace_file(self.shot_folder(index) / LAST, is_durable=True) as part:
            Image.fromarray(frames[-1]).save(part, format="PNG")

    def _write_result(self, index: int, result: VideoResult, **facts: bool) -> VideoResult:
        with replace_file(self.shot_folder(index) / RESULT, is_durable=True) as part:
            part.write_text(json.dumps({"result": result.to_json(), **facts}, ensure_ascii=False), "utf-8")
        return result

    def _add_audio_to_last_frames(self, index: int) -> None:
        """Add the audio of the shot's last frames to their file. A model that reads the audio of clips continues this audio."""
        fps, request = self._request.fps, self._request
        seconds = min(max(OVERLAP_LENGTHS), end_frame(request, index)) / fps
        sound = self._read_model_audio(index).part(end_frame(request, index) / fps - seconds, seconds)
        with contextlib.suppress(StudioError):  # otherwise the next shot's audio starts fresh
            replace_audio(self.shot_folder(index) / LAST_FRAMES, sound, (request.width, request.height))

    def _read_video(self, index: int, first: int, count: int) -> Iterator[np.ndarray]:
        request, size = self._request, (self._request.width, self._request.height)
        video = self.given_video(index)
        assert video is not None, "the shot has a given video"
        return read_clip(video, Part(start=first / request.fps, num_frames=count, fps=request.fps, size=size))

    def _read_shot_frames(self, index: int, piece: Piece) -> Iterator[np.ndarray]:
        if self.given_video(index) is not None:
            return self._read_video(index, piece.first, piece.num_frames)
        exact = self.shot_folder(index) / FRAMES
        frames = iter(np.load(exact, mmap_mode="r")) if exact.exists() else read_frames(self.shot_folder(index) / VIDEO)
        return itertools.islice(frames, piece.first, piece.end)

    def _mix_audio(self, pieces: Sequence[Piece], results: Sequence[VideoResult]) -> Sound | None:
        """Mix the shots' audio and the soundtrack. The audio of two shots cross-fades during the frames that both shots contain.

        A shot without audio is silent. If all audio is from the model, the model's sample rate is used.
        """
        sounds = [self._shot_audio(index) if result.has_sound else None for index, result in enumerate(results)]
        is_models_alone = self._request.track is None and not self._request.shot_videos
        own = next((index for index, sound in enumerate(sounds) if sound), None)
        rate = self._read_model_audio(own).rate if is_models_alone and own is not None else MAX_RATE
        return mix_film_audio(pieces, self._request.fps, sounds, Track.from_request(self._request), rate)

    def _shot_audio(self, index: int) -> Callable[[float, float, int], Sound] | None:
        video, exact = self.given_video(index), self.shot_folder(index) / MODEL_SOUND
        if video is not None:
            return clip_audio_reader(video)

        def part(start: float, seconds: float, rate: int) -> Sound:
            model = self._read_model_audio(index)
            if model.rate == rate:
                return model.part(start, seconds)
            source = exact if exact.exists() else self.shot_folder(index) / VIDEO
            return read_at_rate(source, SoundPart(start=start, seconds=seconds), rate)

        return part

    def _read_model_audio(self, index: int) -> Sound:
        exact = self.shot_folder(index) / MODEL_SOUND
        return Sound.read(exact) if exact.exists() else read_sound(self.shot_folder(index) / VIDEO)

    def _read_record(self, index: int) -> dict | None:
        try:
            return json.loads((self.shot_folder(index) / RESULT).read_text("utf-8"))
        except (OSError, ValueError):
            return None
