"""A storyboard: shots with their own prompt, length and seed. Each goes on from the last frames of the one before: one where a
video begins with a picture, several where it can begin with a clip; unless it starts from its words or a picture of its own, or
is made already. `contract.film` says what is seen of each. Opens no file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from backend.errors import RequestError, short
from backend.schemas.characters import check_characters, shot_references
from backend.schemas.clip import make_trim
from backend.schemas.control import extend_directions, fills_latent_frames
from backend.schemas.geometry import nearest_frame_counts
from backend.schemas.numbers import check_size
from backend.schemas.prompts import MAX_CHARACTERS
from backend.schemas.settings import FIELDS, Settings, Shot, VideoSettings
from presets import Preset

MAX_SHOTS = 24
FOLDER = "shots"  # in the job's folder; in it one for each shot, by its number from 1
LAST, LAST_FRAMES, LOOK = "last.png", "last.mp4", "look.json"  # the files of a shot that is whole; `LAST_FRAMES` has the last
RESULT, VIDEO = "shot.json", "video.mp4"  # frames without any loss, as many as a later shot may begin with
FRAMES = "frames.npy"  # its frames, uint8 [F, H, W, 3], until the storyboard ends: the video has lost a little
OVERLAP_LENGTHS = (17, 9, 5)  # frames that a shot can begin with, where they are whole latent frames
FILES = {"image": "shot_images", "video": "shot_videos", "drive": "shot_drives"}
"""What a shot may bring, and where the request keeps all of a kind."""
JOB = "/studio/job/"  # before a job's id: stands for that job's video until the studio knows who asks
_FIELDS = ("prompt", "num_frames", "seconds", "seed", "cut", "fade", "trim", *FILES, "job")
_NONE = {one.name: one.default for one in FIELDS if one.part == "story"}


def read_shots(rows: object, preset: Preset, fps: object) -> dict[str, tuple[Any, ...]]:
    """`shots` that a file, a form or a program describes, with the files that they bring: `prompt`, `seed`, `num_frames` or
    `seconds`, which are rounded to the nearest length that the preset makes, and paths as `image`, `video` and `drive`, or the
    id of the `job` that has made the video. Values of a wrong type are left for the check. Raises: RequestError."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RequestError(f"shots={short(rows, 40)}", "must be a list of shots, each with its prompt", "give a list")
    if not rows:
        raise RequestError("shots has nothing in it and", "must be a list of shots, each with its prompt", "give one at least")
    files: dict[str, list[Any]] = {name: [] for name in FILES}
    shots = tuple(_read_shot(row, number, preset, fps, files) for number, row in enumerate(rows, 1))
    return {"shots": shots} | {FILES[kind]: tuple(paths) for kind, paths in files.items() if paths}


def _read_shot(row: object, number: int, preset: Preset, fps: object, files: dict[str, list[Any]]) -> Any:
    if not isinstance(row, Mapping):
        return row
    unknown = next((name for name in row if name not in _FIELDS), None)
    if unknown is not None:
        raise RequestError(f"shot {number} has {str(unknown)[:40]!r} and", f"may have {', '.join(_FIELDS)}", "correct its name")
    values = {name: value for name, value in row.items() if value is not None}
    if "job" in values:
        if "video" in values or not isinstance(values["job"], str):
            raise RequestError(f"shot {number} has job={short(values['job'], 40)}", "and must be made by one job", "give its id")
        values["video"] = JOB + values.pop("job")
    if "prompt" not in values:
        if "video" not in values and preset.needs_prompt:
            raise RequestError(f"shot {number} has no prompt and", "must say what it shows", "give it one")
        values["prompt"] = ""
    if "seconds" in values:
        if "num_frames" in values:
            raise RequestError(f"shot {number} has num_frames", "beside seconds, which say the same", "leave one of them out")
        values["num_frames"] = _nearest_length(values.pop("seconds"), number, preset, fps)
    for kind in FILES & values.keys():
        values[kind] = _file_index(values[kind], f"shot {number} has {kind}=", files[kind])
    return values


def _file_index(path: object, what: str, paths: list[str]) -> int:
    """The place of the path among those of its kind, where each stands once."""
    if not isinstance(path, str):
        raise RequestError(f"{what}{short(path, 40)}, which", "must be the path of a file", "correct it")
    if path not in paths:
        paths.append(path)
    return paths.index(path)


def _nearest_length(seconds: Any, number: int, preset: Preset, fps: Any) -> int:
    """The allowed length nearest to so many seconds."""
    shortest, longest = preset.min_frames / preset.fps, preset.max_frames / preset.fps
    try:
        wanted = float(seconds) * float(fps)
        step = preset.frame_step
        if not preset.min_frames - step < wanted < preset.max_frames + step:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        rule = f"must last {shortest:.3g} to {longest:.3g} seconds for {preset.name}"
        raise RequestError(f"shot {number} lasts {str(seconds)[:20]!r} seconds and", rule, "correct it") from None
    counts = nearest_frame_counts(int(wanted), preset.min_frames, preset.max_frames, step, preset.first_frames)
    return min(counts, key=lambda count: abs(count - wanted))


def check_shots(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError for a storyboard that the preset cannot make; each shot is checked as a request of its own."""
    shots = request.shots
    if not shots:
        given = next((name for name, usual in _NONE.items() if getattr(request, name) != usual), None)
        if given is not None:
            raise RequestError(f"{given} was given", "but no shots, to which it belongs", "give shots, or leave this out")
        return
    if len(shots) > MAX_SHOTS:
        raise RequestError(f"{len(shots)} shots were given, and", f"at most {MAX_SHOTS} can be", "leave some out")
    starts_from_picture = "i2v" in preset.tasks and not preset.needs_last_image
    is_alone = all(not continues_previous(request, index) for index in range(len(shots)))
    if preset.live or not (starts_from_picture or extend_directions(preset) or is_alone):
        rule = f"but {preset.name} starts from no picture, as each shot must from the last frame of the one before"
        raise RequestError("shots were given,", rule, "cut between them, or take a preset for image to video")
    if request.sound:
        raise RequestError("sound was given", "beside shots, which make their own", "leave it out, or give it as track")
    for name in ("last_image", "video", "mask", "control", "keyframes"):
        if getattr(request, name):
            raise RequestError(
                f"{name} was given", "beside shots, of which only the first may start from a picture", "leave it out"
            )
    for name in ("drive", "face"):
        if getattr(request, name):
            raise RequestError(f"{name} was given", "beside shots, each of which has its own", "give it to a shot")
    check_characters(request, preset)
    for number, shot in enumerate(shots, 1):
        check_file_indexes(request, shot, number)
        if shot.video is not None:
            _check_finished_shot(request, shot, number)
            continue
        if not shot.prompt.strip() and preset.needs_prompt:
            raise RequestError(f"shot {number} has an empty prompt and", "must say what it shows", "give it one")
        if shot.cut and shot.image is not None:
            raise RequestError(f"shot {number} is cut", "beside image, from which it starts", "leave one of them out")
        try:
            check_size(preset, request.width, request.height, shot_length(request, number - 1))
            shot_request(request, number - 1, preset, "/")
        except RequestError as error:
            raise RequestError(f"shot {number}: {error.what}", error.allowed, error.fix) from None


def check_file_indexes(request: VideoSettings, shot: Shot, number: int) -> None:
    """Raises: RequestError if the shot has the number of a file that the request has not."""
    for kind, role in FILES.items():
        place, count = getattr(shot, kind), len(getattr(request, role))
        if place is not None and not 0 <= place < count:
            raise RequestError(f"shot {number} has {kind}={place}", f"and must name one of {count} files", f"correct {kind}")


def _check_finished_shot(request: VideoSettings, shot: Shot, number: int) -> None:
    given = next((name for name in ("seed", "image", "drive") if getattr(shot, name) is not None), None)
    if given is not None:
        raise RequestError(f"shot {number} has {given}", "beside video, by which it is made already", "leave one of them out")
    if len(shot.prompt) > MAX_CHARACTERS or any("\ud800" <= character <= "\udfff" for character in shot.prompt):
        rule = f"and must have plain text of at most {MAX_CHARACTERS}"
        raise RequestError(f"shot {number} has a prompt of {len(shot.prompt)} characters", rule, "shorten it")
    if not 1 <= shot_length(request, number - 1) <= 100_000:
        raise RequestError(f"shot {number} has num_frames={shot.num_frames} and", "must have those of its video", "correct it")


def starts_fresh(request: VideoSettings, index: int) -> bool:
    """Whether the shot of this index, 0 or more, shows nothing of the one before, so that its colours are its own."""
    shot = request.shots[index]
    return index == 0 or shot.cut or shot.image is not None


def continues_previous(request: VideoSettings, index: int) -> bool:
    """Whether the shot of this index is made from the last frames of the one before."""
    return request.shots[index].video is None and not starts_fresh(request, index)


def needs_only_cutting(request: VideoSettings) -> bool:
    """Whether all shots are made already, so that the storyboard needs cutting only, and no model."""
    return bool(request.shots) and not request.upscale and all(shot.video is not None for shot in request.shots)


def num_overlap_frames(request: VideoSettings, index: int, preset: Preset) -> int:
    """How many of the last frames that are seen of the shot before begin the shot of this index, which goes on from it: 1 or
    more, up to a quarter of its length."""
    if not extend_directions(preset):
        return 1
    before, own = end_frame(request, index - 1), shot_length(request, index)
    window = preset.trained_frames or own
    fitting = (count for count in OVERLAP_LENGTHS if 4 * count <= min(own, window) + 3 and count <= before)
    return next((count for count in fitting if fills_latent_frames(count, preset)), 1)


def end_frame(request: VideoSettings, index: int) -> int:
    """The number of the shot's first frame that is not seen any more, from which the next one goes on."""
    trim = request.shots[index].trim
    return min(shot_length(request, index), round(trim[1] * request.fps)) if trim else shot_length(request, index)


def shot_length(request: VideoSettings, index: int) -> int:
    """All frames of the shot of this index."""
    count = request.shots[index].num_frames
    return request.num_frames if count is None else count


def shot_request(request: Settings, index: int, preset: Preset, before: str) -> Settings:
    """The request of the shot of this index, 0 or more, as a video of its own; `before` is the folder of the shot before it.
    Raises: RequestError."""
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
    return request.changed(
        **_NONE,
        prompt=shot.prompt,
        num_frames=length,
        seed=(request.seed + index) % (1 << 32) if shot.seed is None else shot.seed,
        references=shot_references(request, shot.prompt),
        **start,
    )


def unfinished_shot_requests(request: Settings, preset: Preset) -> Iterator[Settings]:
    """The requests of those shots that are not made already."""
    return (shot_request(request, index, preset, "/") for index, shot in enumerate(request.shots) if shot.video is None)
