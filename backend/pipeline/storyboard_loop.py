"""The files of a storyboard. Each shot has its own folder, with its stage files, its video, its last frames and its result."""

import contextlib
import dataclasses
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
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
from backend.pipeline.denoising import PREVIEW_FOLDER
from backend.schemas import shots
from backend.schemas.clip import Part
from backend.schemas.control import extend_directions
from backend.schemas.events import VIDEO_FILE, VideoResult
from backend.schemas.film import Piece, Track, count_film_frames, plan_pieces
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart

LOOK_FRAMES = 81  # number of frames of a given video, spread evenly, from which the median colors are computed


class StoryboardFiles:
    def __init__(self, request: GenerationRequest, folder: Path, is_first_host: bool = True) -> None:
        self._request, self.folder, self._preset = request, folder, request.resolved_preset
        self._is_first_host, self._continues = is_first_host, functools.partial(shots.continues_previous, request)
        self._extends_clips = bool(extend_directions(self._preset))

    def shot_folder(self, index: int) -> Path:
        return self.folder / shots.FOLDER / str(index + 1)

    def request_for_shot(self, index: int) -> GenerationRequest:
        """Return the request that is stored with the shot's result. For a given video, this is the storyboard's request.
        Otherwise it is the shot's own request, which may start from the previous shot's last frames."""
        if self.given_video(index) is not None:
            return self._request
        return shots.shot_request(self._request, index, self._preset, str(self.shot_folder(index - 1)))

    def given_video(self, index: int) -> Path | None:
        """Return the video file that the request gives for this shot, None if the shot must be generated."""
        place = self._request.shots[index].video
        return None if place is None else Path(self._request.shot_videos[place])

    def read_result(self, index: int) -> VideoResult | None:
        """Read the result of a finished shot, None if it is not finished, or was finished for another request."""
        kept = self._read_record(index)
        if kept is None or not all((self.shot_folder(index) / name).is_file() for name in self._required_files(index)):
            return None
        result, own = VideoResult.from_json(kept["result"]), self.request_for_shot(index).for_sharing()
        made = result.request.for_sharing()
        # An imported shot stays valid if the reference images of its characters change, so these images are not compared
        if kept.get("is_kept"):
            made, own = ({name: value for name, value in one.items() if name != "references"} for one in (made, own))
        if made != own:
            return None
        return dataclasses.replace(result, path=str(self.shot_folder(index) / VIDEO_FILE))

    def is_imported(self, index: int) -> bool:
        """Return whether the shot's result is from an earlier storyboard, or a given video."""
        kept = self._read_record(index)
        return kept is not None and bool(kept.get("is_kept"))

    def clear_shot(self, index: int) -> None:
        """Delete the files of a shot that was finished for another request, and all later shots that continue it. The files of an
        unfinished shot stay, so that the shot can be resumed."""
        if self._read_record(index) is not None:
            shutil.rmtree(self.shot_folder(index))
        for later in itertools.takewhile(self._continues, range(index + 1, len(self._request.shots))):
            shutil.rmtree(self.shot_folder(later), ignore_errors=True)
        self.shot_folder(index).mkdir(parents=True, exist_ok=True)

    def use_given_video(self, index: int) -> VideoResult:
        """Use the given video of a shot as its result. Raises: ClipError."""
        video = self.given_video(index)
        assert video is not None, "the shot has a given video"
        shutil.rmtree(self.shot_folder(index), ignore_errors=True)
        self.shot_folder(index).mkdir(parents=True)
        names, end = self._required_files(index), shots.end_frame(self._request, index)
        if shots.LOOK in names:
            some = itertools.islice(self._read_video(video, 0, end), 0, None, -(-end // LOOK_FRAMES))
            Look.from_frames(np.stack(list(some))).write(self.shot_folder(index) / shots.LOOK)
        if shots.LAST in names:
            first = max(0, end - max(shots.OVERLAP_LENGTHS))
            self._write_last(index, np.stack(list(self._read_video(video, first, end - first))))
        result = VideoResult(
            path=str(self.shot_folder(index) / VIDEO_FILE),
            fps=self._request.fps,
            num_frames=shots.shot_length(self._request, index),
            width=self._request.width,
            height=self._request.height,
            seconds={},
            request=self._request,
            versions={},
            has_sound=self._request.keeps_sound and read_clip_facts(video).has_sound,
        )
        return self._write_result(index, result, is_kept=True)

    def mark_finished(self, index: int, result: VideoResult) -> VideoResult:
        place = self.shot_folder(index)
        if self._extends_clips and (place / MODEL_SOUND).exists():
            # A model that reads the audio of clips continues the audio of the last frames in the next shot.
            request, end = self._request, shots.end_frame(self._request, index)
            seconds = min(max(shots.OVERLAP_LENGTHS), end) / request.fps
            sound = self._read_model_audio(index).part(end / request.fps - seconds, seconds)
            with contextlib.suppress(StudioError):  # if this fails, the next shot's audio does not continue this shot's audio
                replace_audio(place / shots.LAST_FRAMES, sound, (request.width, request.height))
        self._write_result(index, result)
        for file in place.glob("*.safetensors"):
            file.unlink()
        return result

    def match_colors(self, index: int, pieces: list[np.ndarray]) -> list[np.ndarray]:
        """Match the shot's colors to the first shot of its scene: a shot that starts fresh and the shots that continue from it.
        Also write the shot's last frames, from which the next shot starts. `pieces` are arrays uint8 [F, H, W, 3] of all the
        shot's frames. Returns one array of the matched frames in a list."""
        frames, request = np.concatenate(pieces), self._request
        if self._continues(index):
            before = np.asarray(Image.open(self.shot_folder(index - 1) / shots.LAST).convert("RGB"))
            first = next(one for one in range(index, -1, -1) if shots.starts_fresh(request, one))
            look = Look.read(self.shot_folder(first) / shots.LOOK)
            frames = grade_frames(frames, before, look, shots.num_overlap_frames(request, index, self._preset) - 1)
        else:
            Look.from_frames(frames).write(self.shot_folder(index) / shots.LOOK)
        if self._is_first_host:
            with replace_file(self.shot_folder(index) / shots.FRAMES) as part, part.open("wb") as file:
                np.save(file, frames)
        self._write_last(index, frames[: shots.end_frame(request, index)])
        return [frames]

    def join_shots(self, count: int, last: VideoResult | None) -> VideoResult | None:
        """Join the first `count` shots into one video, without frames that repeat the previous shot's last frames. None if
        `count` is 0. `last` is the result of the last shot, None if it is stored in its folder."""
        if count == 0:
            return None
        shot_results = [*(self.read_result(index) for index in range(count - 1)), last or self.read_result(count - 1)]
        results = [result for result in shot_results if result is not None]
        assert len(results) == count, "these shots are finished"
        pieces = plan_pieces(self._request, self._preset, count)
        num_frames, has_sound, notes = count_film_frames(pieces), False, [note for result in results for note in result.notes]
        if self._is_first_host:
            path, request = self.folder / VIDEO_FILE, self._request
            parts = (self._read_shot_frames(index, piece) for index, piece in enumerate(pieces))
            write_video(cross_fade(parts, [piece.fade for piece in pieces]), path, fps=request.fps, request=request)
            try:
                sounds = [self._shot_audio(index) if result.has_sound else None for index, result in enumerate(results)]
                own = next((index for index, sound in enumerate(sounds) if sound), None)
                # If the model generated all audio, the video gets the model's sample rate.
                is_models_alone = request.track is None and not request.shot_videos
                rate = self._read_model_audio(own).rate if is_models_alone and own is not None else MAX_RATE
                # The audio of two shots cross-fades during the frames that both shots contain. A shot without audio is silent.
                sound = mix_film_audio(pieces, request.fps, sounds, Track.from_request(request), rate)
                if sound is not None:
                    replace_audio(path, sound, (request.width, request.height))
                has_sound = sound is not None
            except StudioError as error:
                notes.append(f"The video has no audio: {error.cause}")
        for previews in self.folder.glob(f"{shots.FOLDER}/*/{PREVIEW_FOLDER}"):
            shutil.rmtree(previews)
        for name in (shots.FRAMES, MODEL_SOUND):
            for file in self.folder.glob(f"{shots.FOLDER}/*/{name}"):
                file.unlink()
        names = {name for result in results for name in result.seconds}
        return dataclasses.replace(
            results[-1],
            path=str(self.folder / VIDEO_FILE),
            num_frames=num_frames,
            seconds={name: round(sum(result.seconds.get(name, 0.0) for result in results), 3) for name in names},
            request=self._request,
            notes=tuple(dict.fromkeys(notes)),
            has_sound=has_sound,
            flops={},
        )

    def _required_files(self, index: int) -> tuple[str, ...]:
        """Return the names of the files that this shot must have, so that later shots can continue it."""
        count, made = len(self._request.shots), self.given_video(index) is not None
        scene = list(itertools.takewhile(lambda one: not shots.starts_fresh(self._request, one), range(index + 1, count)))
        is_first = shots.starts_fresh(self._request, index)
        look = (shots.LOOK,) if made and is_first and any(map(self._continues, scene)) else ()
        if made and not (scene and self._continues(index + 1)):
            return look
        return (*look, shots.LAST, shots.LAST_FRAMES) if self._extends_clips else (*look, shots.LAST)

    def _write_last(self, index: int, frames: np.ndarray) -> None:
        """Write the end of `frames`, from which the next shot starts: an image, and a short clip if the model extends clips.
        `frames` must end at the shot's last visible frame."""
        if self._extends_clips:
            with replace_file(self.shot_folder(index) / shots.LAST_FRAMES, is_durable=True) as part:
                write_exact_frames(list(frames[-max(shots.OVERLAP_LENGTHS) :]), part, fps=self._request.fps)
        with replace_file(self.shot_folder(index) / shots.LAST, is_durable=True) as part:
            Image.fromarray(frames[-1]).save(part, format="PNG")

    def _write_result(self, index: int, result: VideoResult, **facts: bool) -> VideoResult:
        with replace_file(self.shot_folder(index) / shots.RESULT, is_durable=True) as part:
            part.write_text(json.dumps({"result": result.to_json(), **facts}, ensure_ascii=False), "utf-8")
        return result

    def _read_video(self, video: Path, first: int, count: int) -> Iterator[np.ndarray]:
        request, size = self._request, (self._request.width, self._request.height)
        return read_clip(video, Part(start=first / request.fps, num_frames=count, fps=request.fps, size=size))

    def _read_shot_frames(self, index: int, piece: Piece) -> Iterator[np.ndarray]:
        if (video := self.given_video(index)) is not None:
            return self._read_video(video, piece.first, piece.num_frames)
        exact = self.shot_folder(index) / shots.FRAMES
        frames = iter(np.load(exact, mmap_mode="r")) if exact.exists() else read_frames(self.shot_folder(index) / VIDEO_FILE)
        return itertools.islice(frames, piece.first, piece.end)

    def _shot_audio(self, index: int) -> Callable[[float, float, int], Sound] | None:
        video, exact = self.given_video(index), self.shot_folder(index) / MODEL_SOUND
        if video is not None:
            return clip_audio_reader(video)

        def part(start: float, seconds: float, rate: int) -> Sound:
            model = self._read_model_audio(index)
            if model.rate == rate:
                return model.part(start, seconds)
            source = exact if exact.exists() else self.shot_folder(index) / VIDEO_FILE
            return read_at_rate(source, SoundPart(start=start, seconds=seconds), rate)

        return part

    def _read_model_audio(self, index: int) -> Sound:
        exact = self.shot_folder(index) / MODEL_SOUND
        return Sound.read(exact) if exact.exists() else read_sound(self.shot_folder(index) / VIDEO_FILE)

    def _read_record(self, index: int) -> dict | None:
        try:
            return json.loads((self.shot_folder(index) / shots.RESULT).read_text("utf-8"))
        except (OSError, ValueError):
            return None
