"""What each model needs besides the disk: the bytes of its weights, and the slices that `check-tpu` found to have room.

`needs.json` is data: weights as `tests/presets/test_needs.py` computes them from the networks' configurations, slices as
docs/performance.md has them. All figures of slices are predicted.
"""

import functools
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

NEEDS_FILE = Path(__file__).with_name("needs.json")


class SliceNeed(BaseModel):
    """One preset on a slice such as "v6e:2x4": GiB of each chip's memory, and predicted seconds of one step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    slice: str
    gib: PositiveFloat
    step_seconds: PositiveFloat


class Needs(BaseModel):
    """`weights` are bytes by the checkpoint's part, in the precision in which they run; `slices` are known to fit, the smallest
    of each chip first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: dict[str, PositiveInt]
    slices: tuple[SliceNeed, ...] = ()

    @property
    def device_bytes(self) -> int:
        """Of the parts that must lie on the devices: text encoders may wait on the host (`backend/weights/host_offload.py`)."""
        return sum(size for part, size in self.weights.items() if not part.startswith("text_encoder"))

    @property
    def weight_bytes(self) -> int:
        """Of all parts together."""
        return sum(self.weights.values())


def find_needs(model: str) -> Needs | None:
    """The needs of a model by the id that presets give it; None if nothing is known."""
    return _read_needs().get(model)


@functools.cache
def _read_needs() -> dict[str, Needs]:
    return {model: Needs(**given) for model, given in json.loads(NEEDS_FILE.read_text("utf-8")).items()}
