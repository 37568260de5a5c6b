"""Seconds that others have published for the same work, to stand beside our predictions. 81 frames, guidance on, one step."""

from __future__ import annotations

from typing import Any

_STEPS = {
    ("wan2.1-t2v-14b-720p", "v6e", 8): 4.59,
    ("wan2.1-t2v-14b-480p", "v6e", 8): 1.26,
    ("wan2.1-t2v-14b-720p", "v6e", 16): 2.5,
}
SOURCE = "gpu-tpu-pedia, Wan 2.1, measured on the chip"


def published_step(preset: str, chip: str, num_devices: int) -> dict[str, Any] | None:
    """{"step_seconds", "source"} for this preset on this many chips, or None."""
    seconds = _STEPS.get((preset, chip, num_devices))
    return None if seconds is None else {"step_seconds": seconds, "source": SOURCE}
