"""Create requests that differ in one setting, and find the setting in which requests differ."""

import math
import secrets
from dataclasses import dataclass, replace
from typing import Any

from backend.errors import RequestError
from backend.schemas.request import SEED_LIMIT, GenerationRequest
from backend.schemas.settings import find_preset
from presets import Preset
from wan_ui.compare.html import MOST, differences

_SIZE = ("width", "height", "num_frames")
SAME_FOR_MODELS = ("prompt", "seed", "image", "image_focus", *_SIZE)
"""The settings that all models of a comparison share. Each model has its own values of all other settings."""


def varied_requests(base: GenerationRequest, what: str, text: str, presets: list[str]) -> list[GenerationRequest]:
    """Return requests with one setting of `base` varied. Raises: RequestError."""
    match what:
        case "seed":
            requests = [base.with_changes(seed=seed) for seed in _parse_seeds(text)]
        case "steps":
            requests = [base.with_changes(steps=steps) for steps in _parse_integers(text, what)]
        case "guidance":
            requests = [base.with_changes(guidance=(value,) * len(base.guidance)) for value in _parse_numbers(text, what)]
        case "flow_shift":
            requests = [base.with_changes(flow_shift=value) for value in _parse_numbers(text, what)]
        case "preset":
            requests = [_with_other_preset(base, find_preset(name)) for name in presets]
        case "loras":
            requests = [base, base.with_changes(loras=())] if base.loras else []
        case _:
            requests = []
    unique = list(dict.fromkeys(requests))
    if not 2 <= len(unique) <= MOST:
        fixes = {"loras": "name a LoRA in More settings", "preset": "choose 2 to 4 models"}
        fix = fixes.get(str(what), "give 2 to 4 values that differ, such as 8, 20, 40")
        raise RequestError(f"compare has {len(unique)} different settings and", f"must have 2 to {MOST}", fix)
    return unique


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A varied setting: its name and its values as typed. If the model varies, `presets` lists the names of the presets."""

    what: str
    text: str = ""
    presets: tuple[str, ...] = ()


def grid_requests(base: GenerationRequest, across: Axis, down: Axis) -> tuple[list[GenerationRequest], int]:
    """Return the requests of a grid, row by row, and the number of columns. Raises: RequestError."""
    if across.what == down.what:
        raise RequestError(f"{down.what} was chosen", "for the columns and for the rows", "choose two different settings")
    # Seeds that are not typed are random. Every row or column has the same seeds.
    across, down = (
        replace(axis, text=", ".join(map(str, _parse_seeds(axis.text)))) if axis.what == "seed" else axis
        for axis in (across, down)
    )
    columns = [
        varied_requests(one, down.what, down.text, [])
        for one in varied_requests(base, across.what, across.text, [*across.presets])
    ]
    return [one for row in zip(*columns, strict=True) for one in row], len(columns)


def _parse_seeds(text: str) -> list[int]:
    return _parse_integers(text, "seed") if text.strip() else [secrets.randbelow(SEED_LIMIT) for _ in range(MOST)]


def _parse_integers(text: str, what: str) -> list[int]:
    values = _parse_numbers(text, what)
    for value in values:
        if value != int(value):
            raise RequestError(f"{what}={value:g}", "must be a whole number", "such as 8, 20, 40")
    return [int(value) for value in values]


def _parse_numbers(text: str, what: str) -> list[float]:
    words = text.replace(";", ",").replace(" ", ",").split(",")
    try:
        values = [float(word) for word in words if word]
        if all(map(math.isfinite, values)):
            return values
    except ValueError:
        pass
    raise RequestError(f"{what}={text[:40]!r}", "must be numbers separated by commas", "such as 8, 20, 40")


def _with_other_preset(base: GenerationRequest, preset: Preset) -> GenerationRequest:
    """Return the preset's settings with the prompt, seed and images of `base`, and with its size if the preset allows it."""
    same: dict[str, Any] = {name: getattr(base, name) for name in SAME_FOR_MODELS}
    try:
        return GenerationRequest.from_preset(preset, **same)
    except RequestError:
        return GenerationRequest.from_preset(preset, **{name: value for name, value in same.items() if name not in _SIZE})


def find_varied_setting(requests: list[GenerationRequest]) -> tuple[str, list[str]]:
    """Return the name and the values of the first setting that differs between the requests.

    Only seed, steps, flow shift, preset, guidance and LoRAs are compared. For LoRAs the list of values is empty, because a
    comparison only turns all LoRAs on or off. Return ("seed", []) if no compared setting differs.
    """
    for name, values in differences(requests):
        if name in ("seed", "steps", "flow_shift", "preset"):
            return name, [str(value) for value in values]
        if name == "guidance":
            return name, [f"{value[0]:g}" for value in values]
        if name == "loras":
            return name, []
    return "seed", []
