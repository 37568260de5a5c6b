"""The part of a clip that a video takes: the one description of it. What a request leaves open follows from the rest, and what
does not fit is refused. Opens no file.

A part is counted in frames at the video's rate. Only its beginning is a moment of the clip, in seconds, because a clip's own
frames may lie anywhere. A request's `trim`, from and to in seconds, is the same part as people write it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

from backend.errors import RequestError
from backend.schemas.geometry import nearest_frame_counts
from backend.schemas.numbers import check_range
from backend.schemas.settings import VideoSettings, find_preset, part_defaults
from presets import Preset

STRENGTH = 0.8  # of a clip, where none is given: diffusers' own
ROUNDING = 0.25  # of a frame: files give their length in hundredths of a second
HUNDREDTHS = 0.00501  # seconds by which such a length may be off


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """`num_frames` frames of a clip, `fps` a second, of `size` (width, height), the first one as the clip is at `start` (seconds;
    None: so that they are the clip's last ones). `focus` in 0..1 says what a crop keeps (see `pictures.crop_box`).

    In the video they are the frames from number `first` on; `corner` (left, top) is where their box of pixels begins there. A
    frame that `is_whole` has black bars in place of a crop.
    """

    start: float | None
    num_frames: int
    fps: int
    size: tuple[int, int]
    focus: tuple[float, float] = (0.5, 0.5)
    first: int = 0
    corner: tuple[int, int] = (0, 0)
    is_whole: bool = False

    @classmethod
    def from_request(cls, request: VideoSettings, role: str = "video") -> Self:
        """What the request wants of the clip of this role. Of a clip that goes on, only the overlap is in the video; with
        margins, it and its mask are so much smaller; a control clip is by its own setting. A finished video is taken whole, and
        of a driving clip whole frames."""
        if role == "finished_video":
            return cls(start=0.0, num_frames=request.total_frames, fps=request.fps, size=(request.width, request.height))
        if role == "face":
            side = find_preset(request.preset).face_side or request.width
            return cls(start=_start_seconds(request, role), num_frames=request.num_frames, fps=request.fps, size=(side, side))
        is_moved, is_overlap = role in ("video", "mask"), request.extend is not None and role == "video"
        left, top, right, bottom = (is_moved and request.margins) or (0, 0, 0, 0)
        smaller = request.control_downscale if role == "control" else 1
        num_frames = required_overlap(request) if is_overlap else request.num_frames
        return cls(
            start=_start_seconds(request, role),
            num_frames=num_frames,
            fps=request.fps,
            size=((request.width - left - right) // smaller, (request.height - top - bottom) // smaller),
            focus=request.image_focus,
            first=request.num_frames - num_frames if request.extend == "before" else 0,
            corner=(left, top),
            is_whole=role == "drive" and request.face is None,
        )

    def resolve_start(self, seconds: float) -> Self:
        """The same with its start, of a clip of so many seconds, as its file says: its last frame ends near that moment."""
        if self.start is not None:
            return self
        whole = round(seconds * self.fps) / self.fps
        end = whole if abs(whole - seconds) <= HUNDREDTHS else seconds
        return dataclasses.replace(self, start=max(0.0, end - self.seconds))

    @property
    def seconds(self) -> float:
        return self.num_frames / self.fps

    @property
    def trim(self) -> tuple[float, float]:
        """From and to, in seconds of the clip, where `start` is known."""
        assert self.start is not None, "`within` finds it"
        return make_trim(self.start, self.num_frames, self.fps)

    @property
    def box(self) -> tuple[slice, slice]:
        """The rows and columns of the video's pixels where the clip lies; around them are margins."""
        (left, top), (width, height) = self.corner, self.size
        return slice(top, top + height), slice(left, left + width)


def _start_seconds(request: VideoSettings, role: str) -> float | None:
    if request.extend is not None and role != "video":
        return 0.0  # beside all of the video
    if request.extend == "after":
        return request.trim[1] - required_overlap(request) / request.fps if request.trim else None
    return request.trim[0] if request.trim else 0.0


def required_overlap(request: VideoSettings) -> int:
    """The overlap of a request that extends a clip: `control` has checked that it is given."""
    assert request.overlap is not None, "extend needs it"
    return request.overlap


def make_trim(start: float, num_frames: int, fps: int) -> tuple[float, float]:
    """From and to, in seconds of the clip, of so many frames from `start` (seconds) on."""
    return start, start + num_frames / fps


def clip_frames(seconds: float, fps: int) -> int:
    """How many frames, `fps` a second, so many seconds of a clip are."""
    return round(seconds * fps)


def max_frames_within(seconds: float, fps: int) -> int:
    """How many frames, `fps` a second, so many seconds at the end of a clip hold at most."""
    return int(seconds * fps + ROUNDING)


def infer_clip_settings(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a request with a clip leaves open: from its beginning on, as long as the video, or a video as long as the part that is
    given. Values of a wrong type are left for the check."""
    try:
        if "trim" not in given:
            return {"trim": make_trim(0.0, values["num_frames"], values["fps"])}
        if "num_frames" not in given:
            start, end = values["trim"]
            return {"num_frames": clip_frames(end - start, values["fps"])}
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        pass
    return {}


def check_clip(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError for a clip that is made anew by its strength, or for what belongs to one and has none. What goes on is
    left to `contract.control`."""
    others = {"trim"} if request.control or request.drive else set()
    given = next((name for name in part_defaults("clip") if name not in others and getattr(request, name) is not None), None)
    if request.video is None:
        if given is not None:
            raise RequestError(f"{given} was given", "but no clip, to which it belongs", "give it as video, or leave this out")
        return
    if request.extend is not None or request.make == "sound":  # see `control.check_control`, `sound.check_sound`
        return
    if preset.makes_sound:
        raise RequestError("video was given", f"and {preset.name} makes a clip's sound only", "ask it to make the sound")
    if request.task != "t2v":
        raise RequestError("image was given", "beside video, and a video begins with one of them", "leave one out")
    check_range("fps", request.fps, 1, preset.max_fps, preset.fps)
    for name in part_defaults("clip"):
        if getattr(request, name) is None:
            raise RequestError(f"{name} is missing:", "a clip needs it", f"give {name}")
    assert request.strength is not None, "it is among those that a clip needs"
    _check_strength(request, request.strength)
    check_trim(request, preset)


def _check_strength(request: VideoSettings, strength: float) -> None:
    if not 0 < strength <= 1:
        raise RequestError(f"strength={strength:g}", "must be above 0 and at most 1", f"{STRENGTH:g} is usual")
    if request.num_steps < 1 <= request.steps:
        rule = f"leaves none of {request.steps} steps and must leave one"
        fix = f"take at least {math.ceil(1000 / request.steps) / 1000:g}, or more steps"
        raise RequestError(f"strength={strength:g}", rule, fix)


def check_trim(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError if the part of the clip is missing or none, or is not as long as the video."""
    if request.trim is None:
        raise RequestError("trim is missing:", "a clip needs it", "give trim")
    check_time_range(request.trim)
    start, end = request.trim
    frames = clip_frames(end - start, request.fps)
    counts = nearest_frame_counts(frames, preset.min_frames, preset.max_frames, preset.frame_step, preset.first_frames)
    if frames != request.num_frames or frames not in counts:
        wanted = counts if frames == request.num_frames else [request.num_frames]
        ends = " or ".join("{:g},{:g} ({} frames)".format(*make_trim(start, count, request.fps), count) for count in wanted)
        length = f"{frames} frames at {request.fps} a second"
        rule = f"is {length} and must be {' or '.join(map(str, wanted))} for {preset.name}"
        raise RequestError(f"trim={start:g},{end:g}", rule, f"take {ends}")


def check_time_range(trim: tuple[float, float]) -> None:
    """Raises: RequestError unless these are two times in a clip, in seconds."""
    start, end = trim
    if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
        rule = "must be two times in the clip, in seconds, 0 or more, the later one second"
        raise RequestError(f"trim={start:g},{end:g}", rule, "0,3 are its first three seconds")
