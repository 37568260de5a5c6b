"""Meshes and copies of matrices as data, with the seconds and the bytes that the TPU's compiler counts for each: `plans.json`.

`python -m benchmarks.tune_plan` writes that file. This module reads it, and knows which of the plans that were tried is the best;
`backend/models/layouts.py` has a rule for slices and models that are not in it.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from backend.chips import CHIPS, DEVICE_KINDS
from backend.runtime.mesh import MeshPlan

TABLE = Path(__file__).with_name("plans.json")
MOST_MEMORY = 0.75  # of a chip's: the compiler's counts know nothing of fragments and of what the runtime itself holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What a plan is for: one chip's name, the devices of the slice, and the transformers that share them.

    `layer_bytes` are those of a layer's matrices, as one chip would hold them.
    """

    chip: str
    devices: int
    transformers: int
    layers: int
    layer_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriedPlan:
    """A mesh, and of how many of a layer's matrices every chip keeps a copy. `seconds` are those of one guided step, predicted,
    None if it does not fit; `hbm_bytes` are a device's, with all networks' weights."""

    mesh: MeshPlan
    copies: int
    seconds: float | None
    hbm_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedPlan:
    """One line of the table. `preset` is the one whose step was compiled."""

    subject: Subject
    preset: str
    tried: tuple[TriedPlan, ...]

    @property
    def best(self) -> TriedPlan | None:
        """The fastest that leaves a quarter of a chip's memory free, of equals the smallest; None if none does."""
        most = MOST_MEMORY * CHIPS[self.subject.chip].hbm_bytes
        fitting = [plan for plan in self.tried if plan.seconds is not None and plan.hbm_bytes <= most]
        return min(fitting, key=lambda plan: (plan.seconds, plan.hbm_bytes), default=None)


def subject_of(
    device_kind: str, num_devices: int, sizes: Mapping[str, int], num_layers: int, num_transformers: int
) -> Subject | None:
    """The subject of a model whose layers have matrices of these bytes, by name; None if the device is no TPU that we know."""
    chip = DEVICE_KINDS.get(device_kind)
    if chip is None:
        return None
    return Subject(
        chip=chip,
        devices=num_devices,
        transformers=num_transformers,
        layers=num_layers,
        layer_bytes=sum(sizes.values()),
    )


def best_plan(subject: Subject | None) -> TriedPlan | None:
    """The best plan of the table, or None if it has none for this."""
    return next((line.best for line in read_table() if line.subject == subject), None)


@functools.cache
def read_table() -> tuple[TunedPlan, ...]:
    """All lines of the table."""
    return tuple(_line(entry) for entry in json.loads(TABLE.read_text("utf-8")))


def write_table(lines: list[TunedPlan]) -> None:
    """Writes the table, a line a plan, sorted."""
    ordered = sorted(lines, key=lambda line: dataclasses.astuple(line.subject))
    TABLE.write_text("[\n" + ",\n".join(json.dumps(_entry(line)) for line in ordered) + "\n]\n", "utf-8")
    read_table.cache_clear()


def _line(entry: dict) -> TunedPlan:
    subject = {field.name: entry[field.name] for field in dataclasses.fields(Subject)}
    tried = [
        TriedPlan(mesh=MeshPlan(dp=dp, sp=sp, tp=tp), copies=copies, seconds=seconds, hbm_bytes=size)
        for dp, sp, tp, copies, seconds, size in entry["tried"]
    ]
    return TunedPlan(subject=Subject(**subject), preset=entry["preset"], tried=tuple(tried))


def _entry(line: TunedPlan) -> dict:
    tried = [
        [one.mesh.dp, one.mesh.sp, one.mesh.tp, one.copies, one.seconds, one.hbm_bytes]
        for one in sorted(line.tried, key=lambda one: (one.mesh.tp, one.mesh.sp, one.copies))
    ]
    return dataclasses.asdict(line.subject) | {"preset": line.preset, "tried": tried}
