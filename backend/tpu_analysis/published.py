"""Seconds that others have published for the same work, to compare with our predictions: one step of the preset, guidance on.

`presets/published_steps.json` is data: a row for each preset, chip such as "v6e" and number of jax's devices.
"""

import json
from typing import Any

from presets.loader import PRESET_FOLDER

STEPS_FILE = PRESET_FOLDER / "published_steps.json"


def published_step(preset: str, chip: str, num_devices: int) -> dict[str, Any] | None:
    """{"step_seconds", "source"} for this preset on this many chips, or None."""
    wanted = {"preset": preset, "chip": chip, "devices": num_devices}
    rows = json.loads(STEPS_FILE.read_text("utf-8"))
    return next(({name: row[name] for name in ("step_seconds", "source")} for row in rows if wanted.items() <= row.items()), None)
