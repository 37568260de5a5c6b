"""A storyboard: shots with their own prompt, length and seed, each going on from the last frames of the one before: one where a
video begins with a picture, several where it can begin with a clip. Opens no file."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from backend.contract.control import extends, is_whole
from backend.contract.geometry import nearest_frame_counts
from backend.contract.settings import VideoSettings
from backend.errors import RequestError, short
from presets import Preset

MAX_SHOTS = 24
FOLDER = "shots"  # in the job's folder; in it one for each shot, by its number from 1
LAST, LAST_FRAMES, LOOK = "last.png", "last.mp4", "look.json"  # the files of a shot that is whole; `LAST_FRAMES` has the last
RESULT, VIDEO = "shot.json", "video.mp4"  # frames without any loss, as many as a later shot may begin with
FRAMES = "frames.npy"  # its frames, uint8 [F, H, W, 3], until the storyboard ends: the video has lost a little
CARRIED = (17, 9, 5)  # frames that a shot can begin with, where they are whole latent frames
_FIELDS = ("prompt", "num_frames", "seconds", "seed")


def read_shots(rows: Any, preset: Preset, fps: Any) -> tuple[Any, ...]:
    """The shots that a file, a form or a program describes: `prompt`, `seed`, and `num_frames` or `seconds`, which are rounded to
    the nearest length that the preset makes. Values of a wrong type are left for the check. Raises: RequestError."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RequestError(f"shots={short(rows, 40)}", "must be a list of shots, each with its prompt", "give a list")
    if not rows:
        raise RequestError("shots has nothing in it and", "must be a list of shots, each with its prompt", "give one at least")
    return tuple(_read(row, number, preset, fps) for number, row in enumerate(rows, 1))


def _read(row: Any, number: int, preset: Preset, fps: Any) -> Any:
    if not isinstance(row, Mapping):
        return row
    unknown = next((name for name in row if name not in _FIELDS), None)
    if unknown is not None:
        raise RequestError(f"shot {number} has {str(unknown)[:40]!r} and", f"may have {', '.join(_FIELDS)}", "correct its name")
    values = {name: value for name, value in row.items() if value is not None}
    if "prompt" not in values:
        raise RequestError(f"shot {number} has no prompt and", "must say what it shows", "give it one")
    if "seconds" in values:
        if "num_frames" in values:
            raise RequestError(f"shot {number} has num_frames", "beside seconds, which say the same", "leave one of them out")
        values["num_frames"] = _frames_of(values.pop("seconds"), number, preset, fps)
    return values


def _frames_of(seconds: Any, number: int, preset: Preset, fps: Any) -> int:
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
        return
    if len(shots) > MAX_SHOTS:
        raise RequestError(f"{len(shots)} shots were given, and", f"at most {MAX_SHOTS} can be", "leave some out")
    starts_from_picture = "i2v" in preset.tasks and not preset.needs_last_image
    if preset.live or not (starts_from_picture or extends(preset)):
        rule = f"but {preset.name} starts from no picture, as each shot must from the last frame of the one before"
        raise RequestError("shots were given,", rule, "take a preset for image to video")
    if request.sound:
        raise RequestError("sound was given", "beside shots, which make their own", "leave it out, or make one shot")
    for name in ("last_image", "video", "mask", "control", "keyframes"):
        if getattr(request, name):
            raise RequestError(
                f"{name} was given", "beside shots, of which only the first may start from a picture", "leave it out"
            )
    for number, shot in enumerate(shots, 1):
        if not shot.prompt.strip():
            raise RequestError(f"shot {number} has an empty prompt and", "must say what it shows", "give it one")
        try:
            shot_request(request, number - 1, preset, "/")
        except RequestError as error:
            raise RequestError(f"shot {number}: {error.what}", error.allowed, error.fix) from None


def carried_frames(request: VideoSettings, index: int, preset: Preset) -> int:
    """How many of the last frames of the shot before begin the shot of this index, 1 or more: up to a quarter of its length."""
    if not extends(preset):
        return 1
    before, own = (_length(request, number) for number in (index - 1, index))
    window = preset.trained_frames or own
    fitting = (count for count in CARRIED if 4 * count <= min(own, window) + 3 and count <= before)
    return next((count for count in fitting if is_whole(count, preset)), 1)


def shot_request(request: VideoSettings, index: int, preset: Preset, before: str) -> VideoSettings:
    """The request of the shot of this index, 0 or more, as a video of its own; `before` is the folder of the shot before it.
    Raises: RequestError."""
    shot = request.shots[index]
    if index == 0:
        start = {"task": "i2v" if request.image else "t2v"}
    elif (carried := carried_frames(request, index, preset)) > 1 or "image" not in preset.inputs:
        clip = str(PurePath(before, LAST_FRAMES))
        start = {"task": "t2v", "image": None, "video": clip, "extend": "after", "overlap": carried, "keeps_pixels": False}
    else:
        start = {"task": "i2v", "image": str(PurePath(before, LAST))}
    return request.changed(
        shots=(),
        prompt=shot.prompt,
        num_frames=_length(request, index),
        seed=(request.seed + index) % (1 << 32) if shot.seed is None else shot.seed,
        **start,
    )


def total_frames(request: VideoSettings, preset: Preset) -> int:
    """The video's frames; of a storyboard those of all shots, without those that are carried over."""
    lengths = [_length(request, index) for index in range(len(request.shots))] or [request.num_frames]
    return sum(lengths) - sum(carried_frames(request, index, preset) for index in range(1, len(lengths)))


def _length(request: VideoSettings, index: int) -> int:
    return request.shots[index].num_frames or request.num_frames
