"""Seconds that others have published for the same work, to compare with our predictions: one step of the preset, guidance on."""

from typing import Any

_PEDIA = "gpu-tpu-pedia, Wan 2.1, measured on the chip"
_MAXDIFFUSION = "maxdiffusion pull request 452, Wan 2.2 on a v7x-8 (4 chips, 8 devices), measured on the chip"
_STEPS = {  # by preset, chip and jax devices
    ("wan2.1-t2v-14b-720p", "v6e", 8): (4.59, _PEDIA),
    ("wan2.1-t2v-14b-480p", "v6e", 8): (1.26, _PEDIA),
    ("wan2.1-t2v-14b-720p", "v6e", 16): (2.5, _PEDIA),
    ("wan2.2-t2v-a14b-720p", "tpu7x", 8): (2.63, _MAXDIFFUSION),
    ("hunyuanvideo-1.5-t2v-720p", "v6e", 8): (5.81, "gpu-tpu-pedia, HunyuanVideo 1.5, 121 frames"),
}


def published_step(preset: str, chip: str, num_devices: int) -> dict[str, Any] | None:
    """{"step_seconds", "source"} for this preset on this many chips, or None."""
    figure = _STEPS.get((preset, chip, num_devices))
    return None if figure is None else {"step_seconds": figure[0], "source": figure[1]}
