"""The modes of Edit: which modes a model supports, the fields that each mode sets, and how a request is read from the page.

Models with strength support Restyle. Models with control blocks support all modes except Restyle, Add audio and Animate. Models
that generate audio support Add audio, and some of them Motion control, Extend and Keyframes. Models whose videos can start with
frames of a clip support Extend. Models with a driving video support only Animate.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from backend.errors import RequestError, shorten
from backend.schemas.clip import make_trim
from backend.schemas.control import MAX_REFERENCES, appends_control_clip, extend_directions
from backend.schemas.numbers import check_count
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from presets import Preset
from wan_ui.form.controls import read_controls, shown_settings
from wan_ui.gateway.uploads import check_upload_path

Mode = Literal["anew", "follow", "paint", "widen", "extend", "keys", "sound", "animate"]
MODES: tuple[Mode, ...] = get_args(Mode)
_SHOWN_ALWAYS = frozenset({"prompt", "num_frames", "seed", "trim"})
MODE_FIELDS: Mapping[Mode, frozenset[str]] = {
    "anew": frozenset({"video", "strength"}),
    "follow": frozenset({"control", "control_kind"}),
    "paint": frozenset({"video", "mask", "keeps_pixels"}),
    "widen": frozenset({"video", "margins", "keeps_pixels"}),
    "extend": frozenset({"video", "extend", "overlap"}),
    "keys": frozenset({"keyframes", "keyframe_at"}),
    "sound": frozenset({"video", "make"}),
    "animate": frozenset({"drive", "image", "face", "video", "mask", "drive_prompt"}),
}
"""The fields of the request that each mode sets, besides the settings."""

_LARGEST = 1e6  # upper limit of the page's numbers of seconds, frames and pixels


def supported_modes(preset: Preset) -> tuple[Mode, ...]:
    if preset.segment_frames is not None:
        return ("animate",)
    if preset.makes_sound:
        more = (
            ("follow", appends_control_clip(preset)),
            ("extend", bool(extend_directions(preset))),
            ("keys", "keyframes" in preset.inputs),
        )
        return ("sound", *(way for way, can in more if can))
    if preset.has_control_blocks:
        return tuple(way for way in MODES if way not in ("anew", "sound", "animate"))
    return ("anew", "extend") if extend_directions(preset) else ("anew",)


def request_mode(request: GenerationRequest) -> Mode:
    if request.make == "sound":
        return "sound"
    if request.drive:
        return "animate"
    if request.strength is not None:
        return "anew"
    given = (("extend", request.extend), ("widen", request.margins), ("paint", request.mask), ("follow", request.control))
    return next((way for way, value in given if value), "keys")


def mode_fields(preset: Preset) -> dict[str, frozenset[str]]:
    """Return the fields of the request that each mode of this model sets, see `MODE_FIELDS`."""
    return {mode: MODE_FIELDS[mode] for mode in supported_modes(preset)}


def loaded_settings(request: GenerationRequest) -> frozenset[str]:
    """Return the names of the request's settings that Edit shows in the request's mode."""
    mode, preset = request_mode(request), request.resolved_preset
    shown = _SHOWN_ALWAYS | MODE_FIELDS[mode] | shown_settings(preset, MODE_FIELDS[mode])
    if appends_control_clip(preset) and mode == "follow":
        return shown | {"control_scale", "control_downscale"}
    return shown | ({"references", "control_scale"} if preset.has_control_blocks and mode != "anew" else frozenset())


def read_request(given: Mapping[str, Any]) -> tuple[Preset, dict[str, Any]]:
    """Read the model and the settings of a request from the page's values. Raises: StudioError."""
    preset = find_preset(str(given.get("preset", "")))
    settings = {name: value for name, value in read_controls(given.get("settings")).items() if value is not None}
    prompt = given.get("prompt") if isinstance(given.get("prompt"), str) else ""
    strength = {"strength": given["strength"]} if given.get("strength") is not None else {}
    fps = settings["fps"] if _is_bounded(settings.get("fps"), int) and settings["fps"] > 0 else preset.fps
    return preset, settings | {"prompt": prompt} | strength | _read_mode_fields(given, preset, fps)


def _read_mode_fields(given: Mapping[str, Any], preset: Preset, fps: int) -> dict[str, Any]:
    ways = supported_modes(preset)
    way = given.get("way", ways[0])
    if way not in ways:
        raise RequestError(f"way={shorten(way)}", f"must be one of {', '.join(ways)} for {preset.name}", "choose another model")
    match way:
        case "keys":
            fields = _read_keyframe_fields(given, preset)
        case "animate":
            fields = _read_animate_fields(given, preset, fps)
        case "extend":
            fields = _read_extend_fields(given, fps)
        case _:
            fields = {**_read_part(given, fps), "control" if way == "follow" else "video": _read_upload(given, "clip")}
    match way:
        case "follow":
            fields["control_kind"] = given.get("control_kind")
        case "paint":
            fields |= {"keeps_pixels": given.get("keeps_pixels"), "mask": _read_upload(given, "mask")}
        case "widen":
            margins, example = given.get("margins"), "64, 0, 64, 0 widen a clip"
            if not (isinstance(margins, list) and len(margins) == 4 and all(_is_bounded(one, int) for one in margins)):
                raise RequestError("the margins", "must be four numbers of pixels, left, top, right and bottom", example)
            fields |= {"keeps_pixels": given.get("keeps_pixels"), "margins": tuple(margins)}
        case "sound":
            fields["make"] = "sound"
    if appends_control_clip(preset) and way == "follow":
        downscale = _read_number(given, "control_downscale", int)
        return fields | {"control_scale": _read_number(given, "control_scale"), "control_downscale": downscale}
    if not preset.has_control_blocks:
        return fields
    paths = given.get("references") or []
    if not isinstance(paths, list):
        raise RequestError("the references", "must be a list of images", "add them again")
    check_count("references", len(paths), MAX_REFERENCES)
    references = tuple(str(check_upload_path(path)) for path in paths)
    return {**fields, "references": references, "control_scale": _read_number(given, "control_scale")}


def _read_extend_fields(given: Mapping[str, Any], fps: int) -> dict[str, Any]:
    if given.get("extend") is None:
        raise RequestError("extend is missing:", "it states where to extend the clip", "give after or before")
    end = _read_number(given, "end")
    return {
        **_read_part(given, fps),
        "trim": None if end is None else (given["start"], end),
        "video": _read_upload(given, "clip"),
        "extend": given["extend"],
        "overlap": _read_number(given, "overlap"),
    }


def _read_animate_fields(given: Mapping[str, Any], preset: Preset, fps: int) -> dict[str, Any]:
    words = given.get("drive_prompt")
    if words is not None and not isinstance(words, str):
        raise RequestError("drive_prompt", "must be a text", "write it again")
    own = "" if words is None or words.strip() == preset.drive_prompt else words
    files = {"drive": _read_upload(given, "clip"), "image": str(check_upload_path(given.get("figure")))}
    beside: dict[str, Literal["clip", "mask"]] = {"face": "clip", "video": "clip", "mask": "mask"}
    files |= {name: str(check_upload_path(given[name], what)) for name, what in beside.items() if given.get(name)}
    return {**_read_part(given, fps), **files, "drive_prompt": own}


def _read_keyframe_fields(given: Mapping[str, Any], preset: Preset) -> dict[str, Any]:
    frames = given.get("keyframes") or []
    are_known = isinstance(frames, list) and all(
        isinstance(one, dict) and one.keys() == {"frame", "image"} and _is_bounded(one["frame"], int) for one in frames
    )
    if not are_known:
        raise RequestError("the keyframes", "must each have a frame number and an image", "add them again")
    check_count("keyframes", len(frames), preset.max_frames)
    if not frames and not given.get("references"):
        raise RequestError("no image was given, and", "the video needs a keyframe or a reference image", "add one")
    frames = sorted(frames, key=lambda one: one["frame"])
    return {
        "num_frames": _read_number(given, "num_frames", int),
        "keyframes": tuple(str(check_upload_path(one["image"])) for one in frames),
        "keyframe_at": tuple(one["frame"] for one in frames),
    }


def _read_part(given: Mapping[str, Any], fps: int) -> dict[str, Any]:
    """Return `trim` and `num_frames` for the part of the clip that is used. The part is as long as the video.

    Raises: RequestError.
    """
    start, frames = given.get("start"), given.get("num_frames")
    if start is None or frames is None or not (_is_bounded(start, int | float) and _is_bounded(frames, int)):
        raise RequestError("the part of the clip is missing:", "start (seconds) and num_frames select it", "give both")
    return {"trim": make_trim(start, frames, fps), "num_frames": frames}


def _read_upload(given: Mapping[str, Any], what: Literal["clip", "mask"]) -> str:
    return str(check_upload_path(given.get(what), what))


def _read_number(given: Mapping[str, Any], name: str, kind: object = int | float) -> Any:
    """Return the value of `name`, which must be a number. Return None if the value is missing. Raises: RequestError."""
    value = given.get(name)
    if value is not None and not _is_bounded(value, kind):
        raise RequestError(f"{name}={shorten(value)}", "must be a number of a sensible size", f"correct {name}")
    return value


def _is_bounded(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and abs(value) < _LARGEST
