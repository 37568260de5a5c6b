"""Guidance on the first steps only, for distilled models: it restores motion that distillation removed. A request states this
with two settings: the guidance and the share of the steps. This module converts between the number of guided steps and these
settings."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from backend.errors import RequestError
from presets import Preset

_WHOLE = re.compile(r"[0-9]{1,6}(\.0)?")
OFFERED = (1, 2)  # numbers of guided steps that the form offers, because users of 4-step models report that these help


def guide_first_steps(preset: Preset, count: object, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that guide only the first `count` steps. `values` are the request's other settings, not yet validated.
    If the guidance in `values` is 1 or less for every expert, the preset's `first_guidance` replaces it. Raises: RequestError."""
    # Programs may send text, such as "2", and pages may send 2.0.
    texts = str(count), str(values["steps"])
    wanted, steps = (int(text.removesuffix(".0")) if _WHOLE.fullmatch(text) else None for text in texts)
    strength = values.get("strength")
    try:
        if steps is not None and strength is not None:
            steps = min(int(steps * float(strength)), steps)
    except (TypeError, ValueError, OverflowError):
        steps = None
    if steps is None:
        return {}  # `steps` or `strength` is invalid, and the request's own checks report that
    if wanted is None or not 0 <= wanted <= steps:
        raise RequestError(f"guided_steps={str(count)[:20]}", f"must be between 0 and the {steps} steps", "1 or 2 is usual")
    if wanted == 0:
        return {"guidance": (1.0,) * preset.num_experts}
    guidance = values["guidance"]
    try:
        is_off = all(float(value) <= 1 for value in guidance)
    except (TypeError, ValueError):
        is_off = False
    if is_off:
        if preset.first_guidance is None:
            raise RequestError("guided_steps was given", f"but {preset.name} has no guidance of its own", "give guidance too")
        guidance = (preset.first_guidance,) * preset.num_experts
    return {"guidance": guidance, "guidance_interval": (0.0, interval_end(wanted, steps))}


def interval_end(count: float, steps: float) -> float:
    """Return the share of all steps after which guidance ends, a whole number of per cent if possible."""
    if count == steps:
        return 1.0
    lowest = math.ceil(100 * count / steps)
    shares = (percent / 100 for percent in (lowest, lowest + 1))
    return next((share for share in shares if int(share * steps) == count), (count + 0.5) / steps)


def count_guided_steps(guidance: Sequence[float], interval: tuple[float, float], steps: int) -> int | None:
    """Return how many first steps have guidance, None if guidance starts later."""
    if all(value <= 1 for value in guidance) or interval[0] >= interval[1]:
        return 0
    return int(interval[1] * steps) if int(interval[0] * steps) == 0 else None
