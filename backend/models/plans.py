"""The table of mesh plans, `plans.json`, with predicted seconds and bytes for each plan.

A plan is a mesh, and the number of a layer's matrices that are replicated: each chip has a whole copy of them.

`python -m benchmarks.tune_plan` writes the table. This module reads the table and chooses the best plan. For slices and models
that are not in the table, `backend/models/layouts.py` has a rule.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from backend.chips import CHIPS, DEVICE_KINDS
from backend.runtime.mesh import MeshPlan

TABLE = Path(__file__).with_name("plans.json")
MOST_MEMORY = 0.75  # share of a chip's memory that a plan may use; the rest is for fragmentation and the runtime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """The devices and the model to which a plan applies: kind and number of chips, number and size of the transformers.

    `layer_bytes` is the size of all matrices of a layer, without sharding.
    """

    chip: str
    devices: int
    transformers: int
    layers: int
    layer_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriedPlan:
    """A plan that `benchmarks.tune_plan` compiled.

    Attributes:
        copies: number of matrices of a layer of which every chip has a copy.
        seconds: predicted seconds of one guided step, None if the step does not fit into memory.
        hbm_bytes: bytes on one device, with the weights of all networks.
    """

    mesh: MeshPlan
    copies: int
    seconds: float | None
    hbm_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedPlan:
    """One row of the table: the plans that `benchmarks.tune_plan` tried for a `Subject`.

    For each plan, the tuner compiled a guided step of the preset `preset`.
    """

    subject: Subject
    preset: str
    tried: tuple[TriedPlan, ...]

    @property
    def best(self) -> TriedPlan | None:
        """The fastest plan that uses at most the share `MOST_MEMORY` of a chip's memory, None if no plan fits.

        Among equally fast plans, this is the plan that uses the fewest bytes.
        """
        most = MOST_MEMORY * CHIPS[self.subject.chip].hbm_bytes
        fitting = [plan for plan in self.tried if plan.seconds is not None and plan.hbm_bytes <= most]
        return min(fitting, key=lambda plan: (plan.seconds, plan.hbm_bytes), default=None)


def describe_subject(
    device_kind: str, num_devices: int, sizes: Mapping[str, int], num_layers: int, num_transformers: int
) -> Subject | None:
    """Return the `Subject` under which the table has the plans for these devices and this model.

    `sizes` are the bytes of a layer's matrices by name.

    Returns None for an unknown kind of device.
    """
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
    """Return the table's best plan for the subject. None if the table has no row for the subject, or no plan fits."""
    return next((line.best for line in read_table() if line.subject == subject), None)


@functools.cache
def read_table() -> tuple[TunedPlan, ...]:
    """Read all rows of the table."""
    return tuple(_parse_line(entry) for entry in json.loads(TABLE.read_text("utf-8")))


def write_table(lines: list[TunedPlan]) -> None:
    """Write the table, sorted by subject. Each row is one line of the file."""
    ordered = sorted(lines, key=lambda line: dataclasses.astuple(line.subject))
    TABLE.write_text("[\n" + ",\n".join(json.dumps(_format_line(line)) for line in ordered) + "\n]\n", "utf-8")
    read_table.cache_clear()


def _parse_line(entry: dict) -> TunedPlan:
    subject = {field.name: entry[field.name] for field in dataclasses.fields(Subject)}
    tried = [
        TriedPlan(mesh=MeshPlan(dp=dp, sp=sp, tp=tp), copies=copies, seconds=seconds, hbm_bytes=size)
        for dp, sp, tp, copies, seconds, size in entry["tried"]
    ]
    return TunedPlan(subject=Subject(**subject), preset=entry["preset"], tried=tuple(tried))


def _format_line(line: TunedPlan) -> dict:
    tried = [
        [one.mesh.dp, one.mesh.sp, one.mesh.tp, one.copies, one.seconds, one.hbm_bytes]
        for one in sorted(line.tried, key=lambda one: (one.mesh.tp, one.mesh.sp, one.copies))
    ]
    return dataclasses.asdict(line.subject) | {"preset": line.preset, "tried": tried}
