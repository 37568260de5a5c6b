"""Translate between OpenAI's video fields and the studio's requests and jobs.

`seconds` count from the first frame to the last: 81 frames at 16 fps are 5 seconds. If `model` is a preset, values are never
rounded. If it is an alias, such as `sora-2`, the program cannot know the preset's sizes and lengths. The nearest size and length
are then used, and the `video` object lists each changed value in `adjusted`.
Source: openai-python 3.54.0, `types/video.py` and `types/video_create_params.py`.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.engine.cleaning import Limits
from backend.engine.job import ListedJob
from backend.errors import RequestError, one_line, shorten
from backend.schemas.geometry import is_frame_count
from backend.schemas.numbers import check_size, nearest_lengths
from backend.schemas.settings import FOR_PROGRAMS, find_preset
from presets import Preset
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import StageView
from wan_ui.routes.video_body import FILES, FINISHED, IMAGES, VideoBody
from wan_ui.services.upscaling import parse_offer

ALIASES: Mapping[str, str] = {"sora-2": "", "sora-2-pro": ""}
"""Names of models that programs for OpenAI's videos send, with the preset that is used; "" is the default preset."""
WEBHOOK = "webhook_url"
FIELDS = ("model", "prompt", "seconds", "size", *FILES, *IMAGES, WEBHOOK)
STATUS = {"queued": "queued", "running": "in_progress", "finished": "completed", "failed": "failed", "cancelled": "failed"}
_SIZE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_WHOLE = re.compile(r"[0-9]{1,4}")
_FRAME = re.compile(r"[0-9]{1,6}")
_DAY = 86_400
_ADJUSTED_FILE = "adjusted.json"  # a file in the job's folder

Adjustment = dict[str, str]
"""A value that an alias changed: the `field`, the `requested` value, and the value that is `used` instead."""


class UnknownField(RequestError):
    """The request has an unknown field."""


class UnknownModel(RequestError):
    """No preset has the name in `model`."""


def parse_settings(
    sent: VideoBody, default_model: str, aliases: Mapping[str, str] = ALIASES
) -> tuple[Preset, dict[str, object], list[Adjustment]]:
    """Return the preset and settings, and the values that are changed because `model` is an alias. Raises: RequestError."""
    settings = {name: value for name, value in sent.fields.items() if name not in FIELDS}
    if unknown := sorted(settings.keys() - FOR_PROGRAMS):
        known = ", ".join([*FIELDS, *sorted(FOR_PROGRAMS)])
        raise UnknownField(one_line(unknown[0])[:60], f"is not known; allowed: {known}", "correct its name or leave it out")
    model = _text_field(sent.fields, "model")
    name = aliases.get(model, model) or default_model
    try:
        preset = find_preset(name)
    except RequestError as error:
        raise UnknownModel(f"model={name[:60]!r}", error.allowed, error.fix) from None
    adjusted = [{"field": "model", "requested": model, "used": preset.name}] if model in aliases else None
    settings |= _parse_size(sent.fields, preset, adjusted) | _parse_seconds(sent.fields, preset, adjusted)
    prompt = _text_field(sent.fields, "prompt")
    given: dict[str, Any] = {name: str(path) for name, path in sent.files.items() if name not in IMAGES}
    if "input_reference" in given:
        given["image"] = given.pop("input_reference")
    if "references" in sent.files:
        given["references"] = tuple(map(str, sent.files["references"]))
    if keyframes := sent.files.get("keyframes"):
        given["keyframes"], frames = tuple(one["image"] for one in keyframes), [one["frame"] for one in keyframes]
        for frame in frames:
            if isinstance(frame, bool) or not isinstance(frame, int | str) or not _FRAME.fullmatch(str(frame)):
                rule = "must be the number of a frame, counted from 0"
                raise RequestError(f"frame={shorten(frame)}", rule, "correct keyframes")
        given["keyframe_at"] = tuple(map(int, frames))
    if "figures" in sent.files:
        given["figures"] = tuple(sent.files["figures"])
    return preset, {"prompt": prompt, **given, **settings}, adjusted or []


def parse_upscaling(sent: VideoBody) -> tuple[int, str]:
    """Return the scale and the upscaler's name of a request that only upscales a clip. Raises: RequestError."""
    if others := sorted({*sent.fields, *sent.files} - {"upscale", "upscaler", WEBHOOK, FINISHED}):
        rule = f"cannot be used with {FINISHED}, which is only upscaled"
        raise RequestError(one_line(others[0])[:60], rule, "give only upscale and upscaler")
    return parse_offer(f"{sent.fields.get('upscale', '')}:{_text_field(sent.fields, 'upscaler')}")


def _text_field(fields: dict[str, object], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise RequestError(f"{name}={shorten(value)}", "must be a text", f"correct {name}")
    return value


def _parse_size(fields: dict[str, object], preset: Preset, adjusted: list[Adjustment] | None) -> dict[str, int]:
    """Return width and height from the field `size`, if it is given. Raises: RequestError.

    If `adjusted` is a list, use the preset's nearest size instead of an unsupported size, and append the change.
    """
    if "size" not in fields:
        return {}
    size = _text_field(fields, "size")
    _refuse_both("size", fields, "width", "height")
    match = _SIZE.fullmatch(size)
    if match:
        width, height = int(match[1]), int(match[2])
        try:
            check_size(preset, width, height, preset.num_frames)
            return {"width": width, "height": height}
        except RequestError:  # the error below lists the sizes in OpenAI's format
            if adjusted is not None and width and height:

                def distance(offered: tuple[int, int]) -> tuple[float, int]:
                    """Compare aspect ratios. If several are equally near, the nearest number of pixels decides."""
                    ratio = round(abs(math.log(offered[0] * height / (offered[1] * width))), 3)
                    return ratio, abs(offered[0] * offered[1] - width * height)

                nearest = min(preset.sizes, key=distance)
                adjusted.append({"field": "size", "requested": size, "used": f"{nearest[0]}x{nearest[1]}"})
                return {"width": nearest[0], "height": nearest[1]}
    offered = ", ".join(f"{width}x{height}" for width, height in preset.sizes)
    sides = f"{preset.min_width} to {preset.max_width} wide and {preset.min_height} to {preset.max_height} high"
    rule = f"does not fit {preset.name}, which makes {offered} and other multiples of {preset.size_multiple}, {sides}"
    raise RequestError(f"size={size[:20]!r}", rule, "choose one, or leave it out")


def _parse_seconds(fields: dict[str, object], preset: Preset, adjusted: list[Adjustment] | None) -> dict[str, int]:
    """Return `num_frames` from the field `seconds`, if it is given. Raises: RequestError.

    If `adjusted` is a list, use the preset's nearest length instead of an unsupported length, and append the change.
    """
    if "seconds" not in fields:
        return {}
    _refuse_both("seconds", fields, "num_frames")
    given_fps, seconds = str(fields.get("fps", preset.fps)), str(fields["seconds"])
    if not (_WHOLE.fullmatch(given_fps) and 1 <= int(given_fps) <= preset.max_fps):
        raise RequestError(f"fps={given_fps[:20]!r}", f"must be between 1 and {preset.max_fps}", f"{preset.fps} is usual")
    fps, match = int(given_fps), _SECONDS.fullmatch(seconds)
    frames = round(float(seconds) * fps) + 1 if match else -1
    fits = preset.min_frames <= frames <= preset.max_frames and is_frame_count(frames, preset.frame_step, preset.first_frames)
    if fits and format_seconds(frames, fps) == f"{float(seconds):.3f}".rstrip("0").rstrip("."):
        return {"num_frames": frames}
    if adjusted is not None and match:
        nearest = min(nearest_lengths(frames, preset), key=lambda count: abs(count - frames))
        adjusted.append({"field": "seconds", "requested": seconds, "used": format_seconds(nearest, fps)})
        return {"num_frames": nearest}
    offered = " or ".join(format_seconds(count, fps) for count in preset.frame_counts)
    limits = (nearest_lengths(count, preset)[0] for count in (preset.min_frames, preset.max_frames))
    first, last = (format_seconds(count, fps) for count in limits)
    lengths = f"from {first} to {last} seconds, {preset.frame_step} frames apart, at {fps} frames per second"
    rule = f"does not fit {preset.name}, which makes {offered} and others {lengths}"
    raise RequestError(f"seconds={seconds[:20]!r}", rule, "choose one, or leave it out")


def _refuse_both(name: str, fields: dict[str, object], *others: str) -> None:
    """Refuse another field for the same value. Raises: RequestError."""
    if given := next((other for other in others if other in fields), None):
        raise RequestError(f"{given} was given", f"together with {name}, which sets the same value", "leave one of the two out")


def format_seconds(num_frames: int, fps: int) -> str:
    """Return the seconds from the first frame to the last, with up to three decimals: "1" for 17 frames at 16 fps."""
    return f"{(num_frames - 1) / fps:.3f}".rstrip("0").rstrip(".")


def store_adjustments(folder: Path, adjusted: list[Adjustment]) -> None:
    """Write the values that an alias changed, if any, to a file in the job's folder."""
    if adjusted:
        (folder / _ADJUSTED_FILE).write_text(json.dumps(adjusted), encoding="utf-8")


def video_object(job: ListedJob, view: StageView, limits: Limits) -> dict[str, object]:
    """Return the job as OpenAI's `video` object, with the studio's additional fields. `view` is the job's progress."""
    request, is_done = job.summary, job.state == "finished"
    expires = None
    if is_done and job.ended is not None and limits.days is not None and not job.is_starred:
        expires = int(job.ended + limits.days * _DAY)
    error: dict[str, object] | None = None
    if job.state == "cancelled":
        error = {"code": "cancelled", "message": "The video was stopped."}
    elif job.state == "failed":
        error = {"code": "generation_failed", "message": shorten_paths("; ".join(filter(None, (view.cause, view.fix))))}
        error |= {"would_fit": [asdict(proposal) for proposal in view.proposals]} if view.proposals else {}
    try:
        adjusted = json.loads((job.folder / _ADJUSTED_FILE).read_text("utf-8"))
    except (OSError, ValueError):  # no file, or a file that a power cut damaged
        adjusted = []
    return {
        "id": job.id,
        "object": "video",
        "model": request.preset,
        "status": STATUS[job.state],
        "progress": 100 if is_done else min(99, int(100 * view.fraction)),
        "created_at": int(job.created),
        "completed_at": int(job.ended) if is_done and job.ended is not None else None,
        "expires_at": expires,
        "seconds": format_seconds(request.total_frames, request.fps),
        "size": f"{request.final_width}x{request.final_height}",
        "prompt": request.prompt,
        "remixed_from_video_id": None,
        "error": error,
        "seed": request.seed,
        "num_frames": request.num_frames,
        "fps": request.fps,
        "adjusted": adjusted,
    }
