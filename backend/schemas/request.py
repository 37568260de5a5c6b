"""The request for one video: a frozen value that is validated when it is constructed. The validation opens no file and rounds no
value."""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from backend.errors import RequestError, shorten
from backend.schemas.characters import check_names, read_characters
from backend.schemas.clip import STRENGTH, check_clip, infer_clip_settings
from backend.schemas.combinations import check_method
from backend.schemas.control import MAX_KEYFRAMES, check_control, infer_control_settings
from backend.schemas.driving_video import check_drive
from backend.schemas.film import check_film, check_times, count_film_frames, plan_pieces
from backend.schemas.guidance_steps import guide_first_steps
from backend.schemas.numbers import check_count, check_range, check_size, check_solver_steps
from backend.schemas.progressive import REFINING_LEVELS
from backend.schemas.prompt_cues import check_cues
from backend.schemas.prompts import MAX_CHARACTERS, check_text, has_surrogates
from backend.schemas.settings import (
    FIELDS,
    GUIDED_STEPS,
    INPUTS,
    MOST_PROMPT,
    SETTINGS,
    VideoSettings,
    refuse_unsupported,
    to_input_fields,
)
from backend.schemas.shots import check_file_indexes, check_shots, read_shots
from backend.schemas.sound import check_sound
from backend.schemas.upscaling import check_upscale
from presets import Preset
from presets.magnitude_files import MOST_STEPS

SEED_LIMIT = 2**32
MAX_FLOW_SHIFT = 100.0
MAX_LORAS = 8  # most LoRAs of a request, because merging each LoRA takes seconds; we know of no use of more
MAX_EXPERTS = 8
MAX_CUES = 100_000
# Longest JSON of an imported request, in characters. A storyboard of 24 shots with the longest prompts has about 200,000.
MOST_STORED_CHARACTERS = 210_000
_STORED = {"is_stored": True}
_IGNORED = ("step_cache", "flow_shift")
"""The settings that models without support ignore. Only `GenerationRequest.from_preset` refuses them, because requests that an
older version stored can contain them, and waiting jobs and storyboards must continue."""


class GenerationRequest(VideoSettings):
    """A validated request for one video. Raises: RequestError at construction if a value is wrong."""

    @classmethod
    def from_preset(cls, preset: Preset, **overrides: object) -> Self:
        """Return a request with the preset's settings and these `overrides`. Overrides with the value None are ignored. The task
        is "i2v" if an image is given, else "t2v". A missing seed is drawn at random. Without `trim`, a restyled clip is used from
        its start. `num_frames` is computed from `trim`, or `trim` from `num_frames`, if only one of the two is given. With the
        override `guided_steps`, only that many first steps have guidance."""
        given = {name: value for name, value in overrides.items() if value is not None}
        guided_steps = given.pop(GUIDED_STEPS.name, None)
        task = "i2v" if {"image", "last_image"} & given.keys() else "t2v"
        own = preset.model_dump(include=set(cls.model_fields))
        drawn = {"preset": preset.name, "task": task, "seed": secrets.randbelow(SEED_LIMIT), "prompt": ""}
        values: dict[str, Any] = {**own, **drawn, **given}
        if preset.has_control_blocks or values.get("extend"):
            values |= infer_control_settings(values, given, preset)
        elif values.get("drive"):
            values |= infer_clip_settings(values, given)
        elif values.get("video"):
            usual: dict[str, Any] = {} if values.get("make") == "sound" else {"strength": STRENGTH}
            values = usual | values | infer_clip_settings(values, given)
        elif values.get("control"):
            values |= infer_clip_settings(values, given)
        if "shots" in given:
            values |= read_shots(given["shots"], preset, values["fps"])
            prompts = (shot["prompt"] if isinstance(shot, Mapping) else getattr(shot, "prompt", "") for shot in values["shots"])
            values["prompt"] = given.get("prompt") or next(filter(None, prompts), "")
        if "figures" in given:
            values |= read_characters(given["figures"])
        if guided_steps is not None:
            if "guidance_interval" in given:
                rule = "together with guidance_interval, which means the same"
                raise RequestError("guided_steps was given", rule, "leave one out")
            values |= guide_first_steps(preset, guided_steps, values)
        request = cls(**values)
        refuse_unsupported(request)
        return request

    @classmethod
    def from_stored(cls, data: dict[str, object]) -> Self:
        """Return the request of an earlier job or video, without checking the presets' current limits. Raises: RequestError, also
        for values that no preset has ever allowed."""
        return cls.model_validate(data, context=_STORED)

    def with_inputs(self, paths: Mapping[str, Sequence[str]]) -> Self:
        """Return a copy with these paths of files by input field, without a check against the preset's current limits."""
        return type(self).from_stored(self.to_json() | to_input_fields(paths))

    @property
    def total_frames(self) -> int:
        """Number of pixel frames of the whole video, with all its shots. Raises: RequestError if the preset of a storyboard no
        longer exists."""
        return count_film_frames(plan_pieces(self, self.resolved_preset)) if self.shots else self.num_frames

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if info.context != _STORED and not data.get("mag_cache"):
            data = {**data, "mag_ratios": ()}  # a request without MagCache stores no ratios for MagCache
        try:
            request = handler(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"]) or "the request"
            if first["type"] == "missing":
                raise RequestError(f"{name} is missing:", "it has no default", f"give {name}") from None
            rule = first["msg"].removeprefix("Value error, ")
            what = f"{name}={shorten(first['input'])} is refused:"
            raise RequestError(what, rule[0].lower() + rule[1:], f"correct {name}") from None
        if info.context == _STORED:
            _check_stored_limits(request)
        else:
            check_request(request, request.resolved_preset)
        return request


def example_request(preset: Preset, task: Literal["t2v", "i2v"] | None = None, **overrides: object) -> GenerationRequest:
    """Return a request with the preset's first example prompt, for compiling ahead. Its input paths need not exist."""
    image = "/image.png" if (task or preset.tasks[0]) == "i2v" else None
    last_image = "/last_image.png" if image and preset.needs_last_image else None
    needed = {role: f"/{role}.mp4" for role, need in preset.takes.items() if need == "must"}
    given = {"prompt": preset.examples[0], "seed": 0, "image": image, "last_image": last_image} | needed | overrides
    return GenerationRequest.from_preset(preset, **given)


def check_request(request: GenerationRequest, preset: Preset) -> None:
    """Check all settings against the preset. Raises: RequestError for the first setting that the preset does not allow."""
    _check_inputs(request, preset)
    check_text("prompt", request.prompt, preset)
    if not request.prompt.strip() and preset.reads_prompt and preset.needs_prompt and not request.shots:
        raise RequestError("prompt is empty and", "must say what the video shows", f"for example {preset.examples[0]!r}")
    check_text("negative_prompt", request.negative_prompt, preset)
    check_control(request, preset)
    if not preset.has_control_blocks and not request.drive:
        check_clip(request, preset)
    check_method("sparse", request, preset)  # before `refuse_unsupported`, because its error names the reason
    refuse_unsupported(request, _IGNORED)
    check_sound(request, preset)
    check_drive(request, preset)
    check_size(preset, request.width, request.height, request.num_frames)
    _check_steps(request, preset)
    check_method("cfg_zero", request, preset)
    check_method("progressive", request, preset)
    changed = {one.name for one in FIELDS if one.value_in(request) != one.default}
    for one in FIELDS:
        for other in one.excludes:
            if one.name in changed and other in changed:
                raise RequestError(one.name, f"cannot be combined with {other}", "leave one out")
    check_method("mag_cache", request, preset)
    check_count("LoRAs", len(request.loras), MAX_LORAS)
    for lora in request.loras:
        if lora.expert != "both" and preset.num_experts == 1:
            what, rule = (
                f"the LoRA {lora.source} is for the {lora.expert}-noise expert, and",
                f"{preset.name} has one network only",
            )
            raise RequestError(what, rule, "leave the expert out")
    check_cues(request, preset)
    if request.context_windows and preset.trained_frames is None:
        raise RequestError("context_windows was given", f"but {preset.name} does not support them", "leave it out")
    check_shots(request, preset)
    check_film(request, preset)
    check_upscale(request)
    if not 0 <= request.seed < SEED_LIMIT:
        raise RequestError(f"seed={request.seed}", f"must be between 0 and {SEED_LIMIT - 1}", "leave it out for a random seed")


def _check_steps(request: GenerationRequest, preset: Preset) -> None:
    check_range("fps", request.fps, 1, preset.max_fps, preset.fps)
    check_range("steps", request.steps, 1, preset.max_steps, preset.steps)
    least = len(REFINING_LEVELS) + 1
    if preset.refines and request.steps < least:
        rule = f"must be {least} or more: the last {least - 1} refine the video at its full size"
        raise RequestError(f"steps={request.steps}", rule, f"{preset.steps} is usual")
    usual = f"{', '.join(f'{value:g}' for value in preset.guidance)} is usual"
    if len(request.guidance) != preset.num_experts:
        rule = f"must have {preset.num_experts}, one per expert of {preset.name}"
        raise RequestError(f"guidance has {len(request.guidance)} values and", rule, usual)
    for value in request.guidance:
        if not 0 <= value <= preset.max_guidance:  # true for NaN too, so that NaN is refused
            raise RequestError(f"guidance={value:g}", f"must be between 0 and {preset.max_guidance:g}", usual)
    if not 0 < request.flow_shift <= MAX_FLOW_SHIFT:
        rule = f"must be above 0 and at most {MAX_FLOW_SHIFT:g}"
        raise RequestError(f"flow_shift={request.flow_shift:g}", rule, f"{preset.flow_shift:g} is usual")
    if request.solver not in preset.solvers:
        rule = f"must be one of {', '.join(preset.solvers)} for {preset.name}"
        raise RequestError(f"solver={request.solver}", rule, "leave it out")
    check_solver_steps(request.solver, request.steps)
    start, end = request.guidance_interval
    if not 0 <= start <= end <= 1:
        rule = "must be two shares of the steps, 0 <= first <= second <= 1"
        raise RequestError(f"guidance_interval={start:g},{end:g}", rule, "0,1 runs guidance throughout")
    for setting in (one for one in FIELDS if one.limits):
        smallest, largest = setting.limits or (-math.inf, math.inf)
        for value in _numbers_in(setting.value_in(request)):
            if not smallest <= value <= largest:
                usual = setting.usual or f"{setting.value_in(preset):g} is usual"
                raise RequestError(f"{setting.name}={value:g}", f"must be between {smallest:g} and {largest:g}", usual)


def check_current_limits(request: GenerationRequest) -> None:
    """Check a request from any source against the limits for new requests, because `from_stored` accepts values that the preset
    refuses today. If the request only upscales a finished video, the other settings describe that video and are not checked.
    Raises: RequestError for the first wrong value, or if the preset no longer exists."""
    _check_stored_limits(request)
    if request.finished_video:
        check_upscale(request)
    else:
        check_request(request, request.resolved_preset)


def check_imported_size(request: GenerationRequest) -> None:
    """Check the length of an imported request, because a long one slows down every list of videos, which reads each stored
    request. Raises: RequestError, also for text with invalid characters."""
    prompts = [(f"the prompt of {kind}", one.prompt or "") for kind in ("cues", "shots") for one in getattr(request, kind)]
    prompts += [("the action of cues", cue.action or "") for cue in request.cues]
    limited = [(one, one.max_imported_length) for one in FIELDS if one.max_imported_length is not None]
    sizes = [(one.name, len(one.value_in(request) or ()), most) for one, most in limited]
    for name, size, most in (*sizes, *((name, len(text), MOST_PROMPT) for name, text in prompts)):
        if size > most:
            raise RequestError(f"{name} of an imported video has {size:,} entries or characters and", f"may have {most:,}")
    text = json.dumps(request.to_json(), ensure_ascii=False)
    if len(text) > MOST_STORED_CHARACTERS:
        what = f"the settings of an imported video have {len(text):,} characters and"
        raise RequestError(what, f"may have {MOST_STORED_CHARACTERS:,}")
    if has_surrogates(text):
        raise RequestError("the settings of an imported video", "must be plain text, without halves of characters")


def _check_stored_limits(request: GenerationRequest) -> None:
    """Raises RequestError for values that no preset has ever allowed. The request is from a link, a video or the store."""
    for setting in FIELDS:
        smallest, largest = setting.stored_limits
        for value in _numbers_in(setting.value_in(request)):
            if not smallest <= value <= largest:  # true for NaN too, so that NaN is refused
                given, name = value if abs(value) < 1e18 else "...", setting.name
                raise RequestError(f"{name}={given}", f"must be between {smallest} and {largest}", f"correct {name}")
    check_solver_steps(request.solver, request.steps)
    if not 1 <= len(request.guidance) <= MAX_EXPERTS:
        raise RequestError(f"guidance has {len(request.guidance)} values and", f"must have 1 to {MAX_EXPERTS}", "give one")
    if len(request.mag_ratios) % 2 or len(request.mag_ratios) > 2 * MOST_STEPS:
        raise RequestError("mag_ratios", f"must be pairs for at most {MOST_STEPS} steps", "leave them out")
    check_count("LoRAs", len(request.loras), MAX_LORAS)
    for setting in INPUTS:
        if setting.is_list:
            check_count(setting.name, len(setting.value_in(request)), MAX_KEYFRAMES)
    check_count("shots", len(request.shots), MAX_CUES)
    for number, shot in enumerate(request.shots, 1):
        check_file_indexes(request, shot, number)
        check_times(shot.trim, shot.fade, f"shot {number}")
        for name in ("num_frames", "seed"):
            value, (smallest, largest) = getattr(shot, name), SETTINGS[name].stored_limits
            if value is not None and not smallest <= value <= largest:
                raise RequestError(f"{name} of a shot", f"must be between {smallest} and {largest}", f"correct {name}")
    check_names(request)
    check_count("cues", len(request.cues), MAX_CUES)
    texts = [(name, getattr(request, name)) for name in ("preset", "prompt", "negative_prompt", "drive_prompt", "upscaler")]
    said = [("cues", cue.prompt or "") for cue in request.cues] + [("shots", shot.prompt) for shot in request.shots]
    for name, text in (*texts, *said):
        if len(text) > MAX_CHARACTERS or has_surrogates(text):
            rule = f"must be plain text of at most {MAX_CHARACTERS} characters"
            raise RequestError(f"{name} has {len(text)} characters and", rule, f"correct {name}")


def _numbers_in(value: object) -> list[float]:
    values = value if isinstance(value, tuple) else (value,)
    return [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]


def _check_inputs(request: GenerationRequest, preset: Preset) -> None:
    if request.task not in preset.tasks:
        others = "text to video only" if preset.tasks == ("t2v",) else "image to video only"
        fix = f"{'leave the image out' if request.task == 'i2v' else 'give an image'}, or choose another preset"
        raise RequestError(f"task={request.task}", f"is not supported by {preset.name}: {others}", fix)
    if request.task == "i2v" and request.image is None:
        raise RequestError("image is missing:", "image to video starts from one", "give the first frame as image")
    if request.task == "t2v" and (request.image or request.last_image):
        raise RequestError("image was given", "but text to video takes no image", "leave it out, or choose task i2v")
    if request.last_image is not None and not preset.takes_last_image:
        raise RequestError("last_image was given", f"but {preset.name} takes a first image only", "leave it out")
    if request.last_image is None and preset.needs_last_image:
        raise RequestError("last_image is missing:", f"{preset.name} needs a first and a last image", "give both")
    given = request.inputs()
    for role in given.keys() - preset.inputs.keys() - {one.name for one in INPUTS if one.subject == "story"}:
        raise RequestError(f"{role} was given", f"but {preset.name} does not take it", "leave it out")
    for role, need in preset.takes.items():
        if need == "must" and role not in given and not (request.shots and SETTINGS[role].subject == "drive"):
            raise RequestError(f"{role} is missing:", f"{preset.name} needs it", f"give {role}")
    for role, path in ((role, path) for role, paths in given.items() for path in paths):
        if not Path(path).is_absolute():
            raise RequestError(f"{role}={path!r}", "must be an absolute path", "give the whole path")
