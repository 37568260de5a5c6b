"""Checks of control clips, masks, margins, keyframes, references and extended clips in a request. This module opens no file."""

from collections.abc import Mapping
from typing import Any, get_args

from backend.errors import RequestError
from backend.schemas.clip import check_time_range, check_trim, clip_frames, infer_clip_settings, required_overlap
from backend.schemas.numbers import check_count, check_range
from backend.schemas.settings import Extend, VideoSettings, subject_defaults
from presets import Preset

MAX_REFERENCES = 8  # most reference images, because each adds a latent frame to the video; a preset may allow fewer
MAX_KEYFRAMES = 1000  # most keyframes in a stored or imported request; a new request has at most one keyframe per frame
# Choices of `overlap` in frames, longest first. A preset allows only choices that are a whole number of its latent frames.
OVERLAPS = (17, 9, 5, 1)
TAKE_CONTROL = "leave it out, or choose a preset with control"
MAX_DOWNSCALE = 8
LEAST_INNER = 16  # pixels: smallest width and height of the area between the margins


def appends_control_clip(preset: Preset) -> bool:
    """Return whether the model takes a control clip as tokens after the tokens of the video."""
    return "control" in preset.inputs and not preset.has_control_blocks


def extend_directions(preset: Preset) -> tuple[Extend, ...]:
    """Models with control blocks extend a clip at both ends, models whose videos can start with several given frames at its
    end."""
    return get_args(Extend) if preset.has_control_blocks else ("after",) if preset.continues else ()


def infer_control_settings(values: Mapping[str, Any], given: Mapping[str, object], preset: Preset) -> dict[str, Any]:
    """Return missing settings of clips. Values of a wrong type are ignored here, because the request's checks refuse them."""
    if values.get("extend"):
        try:
            length = min(values["num_frames"], preset.trained_frames or values["num_frames"])
            fitting = [count for count in OVERLAPS if 2 * count <= length + 1 and fills_latent_frames(count, preset)]
        except TypeError:
            fitting = []
        return {"overlap": fitting[0]} if fitting and "overlap" not in given else {}
    return infer_clip_settings(values, given) if values.get("video") or values.get("control") else {}


def fills_latent_frames(count: int, preset: Preset) -> bool:
    """Return whether `count` pixel frames fill a whole number of latent frames."""
    return (count - preset.first_frames) % preset.frame_step == 0


def check_control(request: VideoSettings, preset: Preset) -> None:
    """Check control inputs. Raises: RequestError for the first wrong setting."""
    if not preset.has_control_blocks:
        _check_without_blocks(request, preset)
        return
    if request.control_downscale != 1:
        rule = f"but {preset.name} takes control clips of the video's size"
        raise RequestError("control_downscale was given", rule, "leave it out")
    if request.strength is not None:
        rule = f"but {preset.name} regenerates the areas of mask and margins"
        raise RequestError("strength was given", rule, "leave it out, or choose a preset without control")
    _check_required_settings(request)
    if request.video and not (request.mask or request.margins or request.extend):
        rule = "but no area of it to regenerate"
        raise RequestError("video was given", rule, "give a mask, margins or extend, or give the clip as control")
    if request.mask and request.extend:
        raise RequestError("mask was given", "together with extend, which generates whole frames", "leave one out")
    if not request.keeps_pixels and not request.video:
        raise RequestError("keeps_pixels was given", "but needs video", "leave it out")
    _check_clip_parts(request, preset)
    if request.margins is not None:
        left, top, right, bottom = request.margins
        given = f"margins={','.join(map(str, request.margins))}"
        if min(request.margins) < 0 or max(request.margins) == 0:
            raise RequestError(given, "must be four numbers of pixels, 0 or more and not all 0", "64,0,64,0 widens a clip")
        for side, size, taken in (("width", request.width, left + right), ("height", request.height, top + bottom)):
            if size - taken < LEAST_INNER:
                rule = f"must leave {LEAST_INNER} pixels of the {side}, which is {size}"
                raise RequestError(given, rule, f"choose smaller margins, or a larger {side}")
    check_count("references", len(request.references), preset.max_references)
    _check_keyframes(request)


def _check_without_blocks(request: VideoSettings, preset: Preset) -> None:
    """Models without control blocks may append images and clips, and start with a clip."""
    taken = {"extend", "overlap", *(["keeps_pixels"] if request.extend else [])} if preset.continues else set()
    taken |= {"keeps_pixels"} if request.drive and request.video else set()
    taken |= {"keyframe_at"} if "keyframes" in preset.inputs else set()
    taken |= {"control_kind", "control_scale", "control_downscale"} if appends_control_clip(preset) else set()
    for name, absent in subject_defaults("control").items():
        if name not in taken and getattr(request, name) != absent:
            raise RequestError(f"{name} was given", f"but {preset.name} does not take it", TAKE_CONTROL)
    _check_required_settings(request)
    _check_keyframes(request)
    if request.extend is not None:
        _check_extension(request, preset)
    if not appends_control_clip(preset):
        return
    if request.control is None:
        for name in ("control_scale", "control_downscale"):
            if getattr(request, name) != 1:
                raise RequestError(f"{name} was given", "but needs control", "give control too, or leave this out")
        return
    if request.make == "sound":
        return  # `sound.check_sound` checks this request
    if preset.refines:
        rule = f"but {preset.name} starts its videos at half the size"
        raise RequestError("control was given", rule, "leave it out, or choose a preset that uses one size")
    scale, downscale = request.control_scale, request.control_downscale
    if not 0 < scale <= 1:
        raise RequestError(f"control_scale={scale:g}", f"must be above 0 and at most 1 for {preset.name}", "1 is usual")
    sides, multiple = (request.width, request.height), preset.size_multiple
    fitting = [times for times in range(1, MAX_DOWNSCALE + 1) if not any(side % (multiple * times) for side in sides)]
    if fitting and downscale not in fitting:  # if no factor fits, `check_size` refuses the size later
        rule = f"must leave sides that are multiples of {multiple}, of a video of {request.width}x{request.height}"
        raise RequestError(f"control_downscale={downscale}", rule, f"choose {' or '.join(map(str, fitting))}, or another size")
    _check_clip_parts(request, preset)


def _check_required_settings(request: VideoSettings) -> None:
    belongs = {"control_kind": "control", "mask": "video", "margins": "video", "extend": "video", "overlap": "extend",
               "keyframe_at": "keyframes"}  # fmt: skip
    for name, other in belongs.items():
        if getattr(request, name) not in (None, (), "as-is") and not getattr(request, other):
            raise RequestError(f"{name} was given", f"but needs {other}", f"give {other} too, or leave this out")


def _check_extension(request: VideoSettings, preset: Preset) -> None:
    """Such a model starts the video with the clip's last frames."""
    if request.extend not in extend_directions(preset):
        rule = f"is not supported by {preset.name}"
        raise RequestError(f"extend={request.extend}", rule, "choose after, or a preset with control")
    if request.task != "t2v":
        raise RequestError("image was given", "together with video, but a video can start with only one", "leave one out")
    if request.strength is not None:
        raise RequestError("strength was given", "together with extend, which leaves the clip unchanged", "leave one out")
    _check_clip_parts(request, preset)
    overlap = required_overlap(request)
    early = next((place for place in request.keyframe_at if place < overlap), None)
    if early is not None:
        rule = f"must be after the {overlap} frames of the clip at the start of the video"
        raise RequestError(f"the keyframe at {early}", rule, f"{overlap} is the first possible frame")
    length = request.window_frames or request.num_frames
    if not fills_latent_frames(overlap, preset) or overlap >= length:
        step = f"{preset.frame_step}n+{preset.first_frames} and below {length}"
        raise RequestError(f"overlap={overlap}", f"must be {step} for {preset.name}", f"{OVERLAPS[0]} is usual")


def _check_clip_parts(request: VideoSettings, preset: Preset) -> None:
    if not (request.video or request.control):
        if request.trim is not None:
            raise RequestError("trim was given", "but needs a clip", "give video or control, or leave this out")
        return
    check_range("fps", request.fps, 1, preset.max_fps, preset.fps)
    if request.extend is None:
        check_trim(request, preset)
        return
    if request.overlap is None:
        raise RequestError("overlap is missing:", "extend needs it", "give overlap")
    if not 1 <= request.overlap < request.num_frames:
        rule = f"must be at least 1 and less than the video's {request.num_frames} frames"
        raise RequestError(f"overlap={request.overlap}", rule, f"{OVERLAPS[0]} is usual")
    if request.trim is not None:
        check_time_range(request.trim)
        start, end = request.trim
        if clip_frames(end - start, request.fps) < request.overlap:
            rule = f"has fewer frames than overlap={request.overlap}"
            raise RequestError(f"trim={start:g},{end:g}", rule, "choose a longer part, or a smaller overlap")


def _check_keyframes(request: VideoSettings) -> None:
    if len(request.keyframes) != len(request.keyframe_at):
        given = f"{len(request.keyframes)} keyframes were given with {len(request.keyframe_at)} frame numbers"
        raise RequestError(given, "and each keyframe must have one", "give each keyframe a frame number, counted from 0")
    last = request.num_frames - 1
    taken = {place for place, path in ((0, request.image), (last, request.last_image)) if path}
    for place in request.keyframe_at:
        if not 0 <= place <= last:
            rule = f"must be one of the video's {request.num_frames} frames, 0 to {last}"
            raise RequestError(f"the keyframe at {place}", rule, f"{last} is the last frame")
        if place in taken:
            raise RequestError(f"two images for frame {place} were given, and", "a frame can have one", "move or leave out one")
        taken.add(place)
