"""Guidance on the first steps alone, for models that need none: it gives them back motion that they lost in distillation.

A request says so by two settings: which guidance, and on which share of the steps. Here the number of steps becomes these, and
these become the number.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from backend.errors import RequestError
from presets import Preset

_WHOLE = re.compile(r"[0-9]{1,6}(\.0)?")
OFFERED = (1, 2)  # as many first steps as users of the 4-step models report to help


def guide_first_steps(preset: Preset, count: object, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which `count` first steps have guidance, from a request's other `values`, which need not be right yet:
    guidance that is 1 or less for every expert becomes the preset's `first_guidance`. Raises: RequestError."""
    wanted, steps = _parse_integer(count), _num_steps_run(values)
    if steps is None:
        return {}  # what is wrong with the steps is said by the request itself
    if wanted is None or not 0 <= wanted <= steps:
        raise RequestError(f"guided_steps={str(count)[:20]}", f"must be between 0 and the {steps} steps", "1 or 2 is usual")
    if wanted == 0:
        return {"guidance": (1.0,) * preset.num_experts}
    guidance = values["guidance"]
    if _is_guidance_off(guidance):
        if preset.first_guidance is None:
            raise RequestError("guided_steps was given", f"but {preset.name} has no guidance of its own", "give guidance too")
        guidance = (preset.first_guidance,) * preset.num_experts
    return {"guidance": guidance, "guidance_interval": (0.0, interval_end(wanted, steps))}


def interval_end(count: float, steps: float) -> float:
    """The share of the steps at which guidance ends after `count` of them: in whole per cent if one is as many steps."""
    if count == steps:
        return 1.0
    lowest = math.ceil(100 * count / steps)
    shares = (percent / 100 for percent in (lowest, lowest + 1))
    return next((share for share in shares if int(share * steps) == count), (count + 0.5) / steps)


def count_guided_steps(guidance: Sequence[float], interval: tuple[float, float], steps: int) -> int | None:
    """How many first steps have guidance, and no later ones; None if it begins later."""
    if all(value <= 1 for value in guidance) or interval[0] >= interval[1]:
        return 0
    return int(interval[1] * steps) if int(interval[0] * steps) == 0 else None


def _num_steps_run(values: Mapping[str, Any]) -> int | None:
    """As `GenerationRequest.num_steps`; None if the values are none."""
    steps, strength = _parse_integer(values["steps"]), values.get("strength")
    try:
        return steps if strength is None or steps is None else min(int(steps * float(strength)), steps)
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_integer(value: object) -> int | None:
    """A whole number, or None; programs may send it as text, and pages as 2.0."""
    text = str(value)
    return int(text.removesuffix(".0")) if _WHOLE.fullmatch(text) else None


def _is_guidance_off(guidance: Any) -> bool:
    try:
        return all(float(value) <= 1 for value in guidance)
    except (TypeError, ValueError):
        return False
