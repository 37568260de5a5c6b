"""The shots of a storyboard, each with a prompt, length and seed. A shot continues from the last frames of the previous shot:
from one frame if the model starts from an image, from several if it can start from a clip. A shot can also start from its prompt
or an image, or be a finished video. `backend.schemas.film` computes the visible frames of each shot. This module opens no
file."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from backend.errors import RequestError, shorten
from backend.schemas.characters import character_image_paths, check_characters, find_characters
from backend.schemas.clip import make_trim
from backend.schemas.control import extend_directions, fills_latent_frames
from backend.schemas.numbers import check_count, check_size, nearest_lengths
from backend.schemas.prompts import MAX_CHARACTERS, has_surrogates
from backend.schemas.settings import FIELDS, Settings, Shot, VideoSettings
from presets import Preset

MAX_SHOTS = 24
FOLDER = "shots"  # a folder in the job's folder. It contains a folder for each shot, named by the shot's number from 1
# Files in a shot's folder, besides its video: the last visible frame, a lossless clip of the last visible frames, and the median
# colours of the shot.
LAST, LAST_FRAMES, LOOK = "last.png", "last.mp4", "look.json"
RESULT = "shot.json"
# File of a shot's frames, uint8 [F, H, W, 3]. The storyboard's video is encoded from these frames, because the shot's mp4 has
# lost detail. Then the file is deleted.
FRAMES = "frames.npy"
OVERLAP_LENGTHS = (17, 9, 5)  # allowed numbers of the previous shot's last frames with which a shot can start
FILES = {"image": "shot_images", "video": "shot_videos", "drive": "shot_drives"}
"""The files of a shot, and the request field that lists all files of a kind."""
# A new request names the video of a job by this prefix and the job's id. The studio replaces the name by the video's path after
# it has checked that the visitor may use the video.
JOB_PATH_PREFIX = "/studio/job/"
_FIELDS = ("prompt", "num_frames", "seconds", "seed", "cut", "fade", "trim", *FILES, "job")
_NONE = {one.name: one.default for one in FIELDS if one.subject == "story"}


def read_shots(rows: object, preset: Preset, fps: object) -> dict[str, tuple[Any, ...]]:
    """Read `shots` from a file, form or program into request fields. `seconds` is rounded to the nearest length that the preset
    allows. `image`, `video` and `drive` are file paths. `job` is the id of the job that generated the shot's video. The checks of
    the request refuse values of a wrong type. Raises: RequestError."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RequestError(f"shots={shorten(rows, 40)}", "must be a list of shots, each with its prompt", "give a list")
    if not rows:
        raise RequestError("shots is empty and", "must be a list of shots, each with its prompt", "give at least one")
    files: dict[str, list[Any]] = {name: [] for name in FILES}
    shots = tuple(_read_shot(row, number, preset, fps, files) for number, row in enumerate(rows, 1))
    return {"shots": shots} | {FILES[kind]: tuple(paths) for kind, paths in files.items() if paths}


def _read_shot(row: object, number: int, preset: Preset, fps: Any, files: dict[str, list[Any]]) -> object:
    if not isinstance(row, Mapping):
        return row
    unknown = next((name for name in row if name not in _FIELDS), None)
    if unknown is not None:
        raise RequestError(f"shot {number} has {str(unknown)[:40]!r} and", f"may have {', '.join(_FIELDS)}", "correct its name")
    values = {name: value for name, value in row.items() if value is not None}
    if "job" in values:
        if "video" in values or not isinstance(values["job"], str):
            what = f"shot {number} has job={shorten(values['job'], 40)}"
            raise RequestError(what, "and must name one job and no video", "give a job's id")
        values["video"] = JOB_PATH_PREFIX + values.pop("job")
    if "prompt" not in values:
        if "video" not in values and preset.needs_prompt:
            raise RequestError(f"shot {number} has no prompt and", "must say what the shot shows", "give it a prompt")
        values["prompt"] = ""
    if "seconds" in values:
        if "num_frames" in values:
            raise RequestError(f"shot {number} has num_frames", "together with seconds, which means the same", "leave one out")
        seconds: Any = values.pop("seconds")
        shortest, longest = preset.min_frames / preset.fps, preset.max_frames / preset.fps
        try:
            wanted = float(seconds) * float(fps)
            if not preset.min_frames - preset.frame_step < wanted < preset.max_frames + preset.frame_step:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            rule = f"must last {shortest:.3g} to {longest:.3g} seconds for {preset.name}"
            raise RequestError(f"shot {number} lasts {str(seconds)[:20]!r} seconds and", rule, "correct it") from None
        values["num_frames"] = min(nearest_lengths(int(wanted), preset), key=lambda count: abs(count - wanted))
    for kind in FILES & values.keys():
        path, paths = values[kind], files[kind]
        if not isinstance(path, str):
            what = f"shot {number} has {kind}={shorten(path, 40)}, which"
            raise RequestError(what, "must be the path of a file", "correct it")
        if path not in paths:
            paths.append(path)
        values[kind] = paths.index(path)
    return values


def check_shots(request: VideoSettings, preset: Preset) -> None:
    """Check the storyboard, and each shot as a separate request. Raises: RequestError."""
    shots = request.shots
    if not shots:
        given = next((name for name, usual in _NONE.items() if getattr(request, name) != usual), None)
        if given is not None:
            raise RequestError(f"{given} was given", "but needs shots", "give shots, or leave this out")
        return
    check_count("shots", len(shots), MAX_SHOTS)
    starts_from_picture = "i2v" in preset.tasks and not preset.needs_last_image
    is_alone = all(not continues_previous(request, index) for index in range(len(shots)))
    if preset.live or not (starts_from_picture or extend_directions(preset) or is_alone):
        rule = f"but {preset.name} cannot start from an image, and each shot starts from the previous shot's last frame"
        raise RequestError("shots were given,", rule, "cut between them, or choose a preset for image to video")
    if request.sound:
        rule = "together with shots, which have their own audio"
        raise RequestError("sound was given", rule, "leave it out, or give it as track")
    for name in ("last_image", "video", "mask", "control", "keyframes"):
        if getattr(request, name):
            rule = "together with shots, but only image is allowed, for the first shot"
            raise RequestError(f"{name} was given", rule, "leave it out")
    for name in ("drive", "face"):
        if getattr(request, name):
            raise RequestError(f"{name} was given", "together with shots, each of which has its own", "give it to a shot")
    check_characters(request, preset)
    for number, shot in enumerate(shots, 1):
        check_file_indexes(request, shot, number)
        if shot.video is not None:
            _check_finished_shot(request, shot, number)
            continue
        if not shot.prompt.strip() and preset.needs_prompt:
            raise RequestError(f"shot {number} has an empty prompt and", "must say what the shot shows", "give it a prompt")
        if shot.cut and shot.image is not None:
            raise RequestError(f"shot {number} is cut", "and has image, but can start in only one way", "leave one out")
        try:
            check_size(preset, request.width, request.height, shot_length(request, number - 1))
            shot_request(request, number - 1, preset, "/")
        except RequestError as error:
            raise RequestError(f"shot {number}: {error.what}", error.allowed, error.fix) from None


def check_file_indexes(request: VideoSettings, shot: Shot, number: int) -> None:
    """Check that the shot's file indexes are valid. Raises: RequestError."""
    for kind, role in FILES.items():
        place, count = getattr(shot, kind), len(getattr(request, role))
        if place is not None and not 0 <= place < count:
            raise RequestError(f"shot {number} has {kind}={place}", f"and must name one of {count} files", f"correct {kind}")


def _check_finished_shot(request: VideoSettings, shot: Shot, number: int) -> None:
    given = next((name for name in ("seed", "image", "drive") if getattr(shot, name) is not None), None)
    if given is not None:
        raise RequestError(f"shot {number} has {given}", "together with a finished video", "leave one out")
    if len(shot.prompt) > MAX_CHARACTERS or has_surrogates(shot.prompt):
        rule = f"and must have plain text of at most {MAX_CHARACTERS}"
        raise RequestError(f"shot {number} has a prompt of {len(shot.prompt)} characters", rule, "shorten it")
    if not 1 <= shot_length(request, number - 1) <= 100_000:
        what = f"shot {number} has num_frames={shot.num_frames} and"
        raise RequestError(what, "must have the length of its video", "correct it")


def starts_fresh(request: VideoSettings, index: int) -> bool:
    """Return whether shot `index` shows nothing of the previous shot."""
    shot = request.shots[index]
    return index == 0 or shot.cut or shot.image is not None


def continues_previous(request: VideoSettings, index: int) -> bool:
    """Return whether shot `index` is generated from the previous shot's last frames."""
    return request.shots[index].video is None and not starts_fresh(request, index)


def needs_only_cutting(request: VideoSettings) -> bool:
    """Return whether the storyboard is joined without a model."""
    return bool(request.shots) and not request.upscale and all(shot.video is not None for shot in request.shots)


def num_overlap_frames(request: VideoSettings, index: int, preset: Preset) -> int:
    """Return how many of the previous shot's last visible frames start shot `index`, which continues that shot: 1 to a quarter of
    the shot."""
    if not extend_directions(preset):
        return 1
    before, own = end_frame(request, index - 1), shot_length(request, index)
    window = preset.trained_frames or own
    fitting = (count for count in OVERLAP_LENGTHS if 4 * count <= min(own, window) + 3 and count <= before)
    return next((count for count in fitting if fills_latent_frames(count, preset)), 1)


def end_frame(request: VideoSettings, index: int) -> int:
    """Return the first frame after the shot's visible part. The next shot continues from the frame before it."""
    trim = request.shots[index].trim
    return min(shot_length(request, index), round(trim[1] * request.fps)) if trim else shot_length(request, index)


def shot_length(request: VideoSettings, index: int) -> int:
    """Return the number of frames of shot `index`, which include invisible frames."""
    count = request.shots[index].num_frames
    return request.num_frames if count is None else count


def shot_request(request: Settings, index: int, preset: Preset, before: str) -> Settings:
    """Return shot `index` as the request of a separate video. `before` is the previous shot's folder. Raises: RequestError."""
    shot = request.shots[index]
    start: dict[str, object]
    if shot.image is not None:
        start = {"task": "i2v", "image": request.shot_images[shot.image]}
    elif shot.cut and shot.drive is not None:
        start = {"task": "i2v"}
    elif shot.cut:
        start = {"task": "t2v", "image": None}
    elif index == 0:
        start = {"task": "i2v" if request.image else "t2v"}
    elif (carried := num_overlap_frames(request, index, preset)) > 1 or "image" not in preset.inputs:
        clip = str(PurePath(before, LAST_FRAMES))
        start = {"task": "t2v", "image": None, "video": clip, "extend": "after", "overlap": carried, "keeps_pixels": False}
    else:
        start = {"task": "i2v", "image": str(PurePath(before, LAST))}
    length = shot_length(request, index)
    if shot.drive is not None:
        start |= {"drive": request.shot_drives[shot.drive], "trim": make_trim(0.0, length, request.fps)}
    named = find_characters(shot.prompt, request.figures)
    return request.with_changes(
        **_NONE,
        prompt=shot.prompt,
        num_frames=length,
        seed=(request.seed + index) % (1 << 32) if shot.seed is None else shot.seed,
        references=tuple(dict.fromkeys((*request.references, *character_image_paths(request, named)))),
        **start,
    )
