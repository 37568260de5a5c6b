"""The memory that each model needs: the bytes of its weights, and the TPU slices that `check-tpu` found large enough.

`needs.json` has the data. `tests/presets/test_needs.py` compares the weights with the networks, and the slices with the tables in
docs/performance.md. All figures of slices are predicted.
"""

import functools
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

NEEDS_FILE = Path(__file__).with_name("needs.json")


class SliceNeed(BaseModel):
    """The needs of a preset on a slice such as "v6e:2x4": GiB of memory per chip, and predicted seconds per step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    slice: str
    gib: PositiveFloat
    step_seconds: PositiveFloat


class Needs(BaseModel):
    """The needs of a model.

    `weights` are bytes by part of the checkpoint, in the dtype in which the part runs. `slices` are TPU slices that are large
    enough. For each chip type, the smallest slice is first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: dict[str, PositiveInt]
    slices: tuple[SliceNeed, ...] = ()

    @property
    def device_bytes(self) -> int:
        """Bytes of the weights that must be on the devices: all except text encoders.

        Text encoders can stay on the host (`backend/weights/host_offload.py`).
        """
        return sum(size for part, size in self.weights.items() if not part.startswith("text_encoder"))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(self.weights.values())


def find_needs(model: str) -> Needs | None:
    """Return the needs of a model by its `Preset.model`, or None if unknown."""
    return _read_needs().get(model)


@functools.cache
def _read_needs() -> dict[str, Needs]:
    return {model: Needs(**given) for model, given in json.loads(NEEDS_FILE.read_text("utf-8")).items()}
