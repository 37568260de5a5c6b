"""The part of a clip that a request begins with: what is left open follows from the rest, and what does not fit is refused. Opens
no file."""

import math
from collections.abc import Mapping
from typing import Any

from backend.contract.geometry import nearest_frame_counts
from backend.contract.numbers import check_whole
from backend.contract.settings import VideoSettings, only_with
from backend.errors import RequestError
from presets import Preset

STRENGTH = 0.8  # of a clip, where none is given: diffusers' own


def part_of_clip(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a request with a clip leaves open: from its beginning on, as long as the video, or a video as long as the part that is
    given. Values of a wrong type are left for the check."""
    try:
        if "trim" not in given:
            return {"trim": (0.0, values["num_frames"] / values["fps"])}
        if "num_frames" not in given:
            start, end = values["trim"]
            return {"num_frames": clip_frames(end - start, values["fps"])}
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        pass
    return {}


def clip_frames(seconds: float, fps: int) -> int:
    """How many frames, `fps` a second, so many seconds of a clip are."""
    return round(seconds * fps)


def check_clip(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError for a clip that is made anew by its strength, or for what belongs to one and has none. What goes on is
    left to `contract.control`."""
    given = next((name for name in only_with("clip") if getattr(request, name) is not None), None)
    if request.video is None:
        if given is not None:
            raise RequestError(f"{given} was given", "but no clip, to which it belongs", "give it as video, or leave this out")
        return
    if request.extend is not None:  # see `control.check_control`
        return
    if request.task != "t2v":
        raise RequestError("image was given", "beside video, and a video begins with one of them", "leave one out")
    check_whole("fps", request.fps, 1, preset.max_fps, preset.fps)
    for name in only_with("clip"):
        if getattr(request, name) is None:
            raise RequestError(f"{name} is missing:", "a clip needs it", f"give {name}")
    _check_strength(request)
    check_trim(request, preset)


def _check_strength(request: VideoSettings) -> None:
    if not 0 < request.strength <= 1:
        raise RequestError(f"strength={request.strength:g}", "must be above 0 and at most 1", f"{STRENGTH:g} is usual")
    if request.num_steps < 1 <= request.steps:
        rule = f"leaves none of {request.steps} steps and must leave one"
        fix = f"take at least {math.ceil(1000 / request.steps) / 1000:g}, or more steps"
        raise RequestError(f"strength={request.strength:g}", rule, fix)


def check_trim(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError if the part of the clip is none, or is not as long as the video."""
    check_two_times(request.trim)
    start, end = request.trim
    frames = clip_frames(end - start, request.fps)
    counts = nearest_frame_counts(frames, preset.min_frames, preset.max_frames, preset.frame_step, preset.first_frames)
    if frames != request.num_frames or frames not in counts:
        wanted = counts if frames == request.num_frames else [request.num_frames]
        ends = " or ".join(f"{start:g},{start + count / request.fps:g} ({count} frames)" for count in wanted)
        length = f"{frames} frames at {request.fps} a second"
        rule = f"is {length} and must be {' or '.join(map(str, wanted))} for {preset.name}"
        raise RequestError(f"trim={start:g},{end:g}", rule, f"take {ends}")


def check_two_times(trim: tuple[float, float]) -> None:
    """Raises: RequestError unless these are two times in a clip, in seconds."""
    start, end = trim
    if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
        rule = "must be two times in the clip, in seconds, 0 or more, the later one second"
        raise RequestError(f"trim={start:g},{end:g}", rule, "0,3 are its first three seconds")
