"""Seconds of one guided step that other projects published, to compare with our predictions.

`presets/published_steps.json` has one row for each preset, chip (such as "v6e") and number of jax devices.
"""

import json

from presets.loader import PRESET_FOLDER

STEPS_FILE = PRESET_FOLDER / "published_steps.json"


def published_step(preset: str, chip: str, num_devices: int) -> dict[str, object] | None:
    """Return {"step_seconds", "source"} for this preset on `num_devices` devices. None if nothing was published."""
    wanted = {"preset": preset, "chip": chip, "devices": num_devices}
    rows = json.loads(STEPS_FILE.read_text("utf-8"))
    return next(({name: row[name] for name in ("step_seconds", "source")} for row in rows if wanted.items() <= row.items()), None)
