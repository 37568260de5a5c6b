"""The part of a clip that a video uses. This module computes missing settings of the part from the given settings, and checks
them. No file is opened. A part is counted in frames at the video's frame rate. Only its start is a time of the clip, in seconds,
because the frames of a clip can have irregular times. A request's `trim` states the same part as (from, to) in seconds."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

from backend.errors import RequestError
from backend.schemas.numbers import check_range, nearest_lengths
from backend.schemas.settings import VideoSettings, subject_defaults
from presets import Preset

STRENGTH = 0.8  # default of `strength` for restyled clips, as in diffusers
# A part may be this many frames longer than the stated length of its clip, because files state lengths in hundredths of a second.
ROUNDING = 0.25
# Seconds: if the stated length differs by at most this from a whole number of frames, the difference counts as a rounding error.
HUNDREDTHS = 0.00501


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a clip: `num_frames` frames at `fps` frames per second and `size` (width, height) in pixels. `start` is the time
    of the first frame in seconds; None means that the part ends at the clip's end. `focus` (x, y) is the position of the area
    that a crop keeps: 0 at the left or top, 1 at the right or bottom. In the video, the part's frames start at frame `first`, and
    its pixels at `corner` (left, top). If `is_letterboxed`, frames get black bars instead of being cropped."""

    start: float | None
    num_frames: int
    fps: int
    size: tuple[int, int]
    focus: tuple[float, float] = (0.5, 0.5)
    first: int = 0
    corner: tuple[int, int] = (0, 0)
    is_letterboxed: bool = False

    @classmethod
    def from_request(cls, request: VideoSettings, role: str = "video") -> Self:
        """Return the part that the request uses of one of its clips. `role` is the clip's field in the request. For an extended
        clip, the part is only the overlap. With margins, the parts of the clip and of its mask are smaller than the video. The
        width and height of a control clip are divided by `control_downscale`. A finished video is used from start to end. Frames
        of a driving clip are not cropped, unless the request has a `face` clip."""
        if role == "finished_video":
            return cls(start=0.0, num_frames=request.total_frames, fps=request.fps, size=(request.width, request.height))
        start: float | None = request.trim[0] if request.trim else 0.0
        if request.extend is not None and role != "video":
            start = 0.0  # if a request extends a clip, all its other clips are used from their start
        elif request.extend == "after":
            start = request.trim[1] - required_overlap(request) / request.fps if request.trim else None
        if role == "face":
            side = request.resolved_preset.face_side or request.width
            return cls(start=start, num_frames=request.num_frames, fps=request.fps, size=(side, side))
        left, top, right, bottom = (role in ("video", "mask") and request.margins) or (0, 0, 0, 0)
        smaller = request.control_downscale if role == "control" else 1
        is_overlap = request.extend is not None and role == "video"
        num_frames = required_overlap(request) if is_overlap else request.num_frames
        return cls(
            start=start,
            num_frames=num_frames,
            fps=request.fps,
            size=((request.width - left - right) // smaller, (request.height - top - bottom) // smaller),
            focus=request.image_focus,
            first=request.num_frames - num_frames if request.extend == "before" else 0,
            corner=(left, top),
            is_letterboxed=role == "drive" and request.face is None,
        )

    def resolve_start(self, seconds: float) -> Self:
        """A part without `start` is placed at the end of the clip, whose length is `seconds`."""
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
        """The part as (from, to) in seconds of the clip."""
        assert self.start is not None, "`resolve_start` sets it"
        return make_trim(self.start, self.num_frames, self.fps)

    @property
    def pixel_slices(self) -> tuple[slice, slice]:
        (left, top), (width, height) = self.corner, self.size
        return slice(top, top + height), slice(left, left + width)


def required_overlap(request: VideoSettings) -> int:
    """The request must extend a clip, and have passed `check_control`."""
    assert request.overlap is not None, "extend needs it"
    return request.overlap


def make_trim(start: float, num_frames: int, fps: int) -> tuple[float, float]:
    return start, start + num_frames / fps


def clip_frames(seconds: float, fps: int) -> int:
    return round(seconds * fps)


def max_frames_within(seconds: float, fps: int) -> int:
    """Return the largest number of frames that fits into the last `seconds` of a clip."""
    return int(seconds * fps + ROUNDING)


def infer_clip_settings(values: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Compute `trim` from `num_frames`, or `num_frames` from `trim`, if only one was set. Without `trim`, the part starts at the
    clip's start. Values of a wrong type are ignored here, because the request's checks refuse them."""
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
    """Check a restyled clip; `backend.schemas.control` checks extended clips. Raises: RequestError."""
    others = {"trim"} if request.control or request.drive else set()
    given = next((name for name in subject_defaults("clip") if name not in others and getattr(request, name) is not None), None)
    if request.video is None:
        if given is not None:
            raise RequestError(f"{given} was given", "but needs a clip", "give it as video, or leave this out")
        return
    if request.extend is not None or request.make == "sound":  # `control.check_control` or `sound.check_sound` checks this clip
        return
    if preset.makes_sound:
        raise RequestError("video was given", f"and {preset.name} can only generate audio for a clip", "set make to sound")
    if request.task != "t2v":
        raise RequestError("image was given", "together with video, but a video can start with only one", "leave one out")
    check_range("fps", request.fps, 1, preset.max_fps, preset.fps)
    for name in subject_defaults("clip"):
        if getattr(request, name) is None:
            raise RequestError(f"{name} is missing:", "a clip needs it", f"give {name}")
    strength = request.strength
    assert strength is not None, "the loop above has checked it"
    if not 0 < strength <= 1:
        raise RequestError(f"strength={strength:g}", "must be above 0 and at most 1", f"{STRENGTH:g} is usual")
    if request.num_steps < 1 <= request.steps:
        rule = f"leaves none of {request.steps} steps and must leave at least one"
        fix = f"choose at least {math.ceil(1000 / request.steps) / 1000:g}, or more steps"
        raise RequestError(f"strength={strength:g}", rule, fix)
    check_trim(request, preset)


def check_trim(request: VideoSettings, preset: Preset) -> None:
    """Check that the clip's part is as long as the video. Raises: RequestError."""
    if request.trim is None:
        raise RequestError("trim is missing:", "a clip needs it", "give trim")
    check_time_range(request.trim)
    start, end = request.trim
    frames = clip_frames(end - start, request.fps)
    counts = nearest_lengths(frames, preset)
    if frames != request.num_frames or frames not in counts:
        wanted = counts if frames == request.num_frames else [request.num_frames]
        ends = " or ".join("{:g},{:g} ({} frames)".format(*make_trim(start, count, request.fps), count) for count in wanted)
        length = f"{frames} frames at {request.fps} fps"
        rule = f"is {length} and must be {' or '.join(map(str, wanted))} for {preset.name}"
        raise RequestError(f"trim={start:g},{end:g}", rule, f"choose {ends}")


def check_time_range(trim: tuple[float, float]) -> None:
    """Check that `trim` is a start and a later end in seconds. Raises: RequestError."""
    start, end = trim
    if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
        rule = "must be two times of the clip, in seconds, 0 or more, the later time second"
        raise RequestError(f"trim={start:g},{end:g}", rule, "0,3 are its first three seconds")
