"""Choose a model's mesh, and the matrices of a layer of which each chip has a copy, by the table of mesh plans, `plans.json`.

`python -m benchmarks.tune_plan` writes the table, with predicted seconds and bytes for each plan.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from backend.checkpoints.json_files import Config
from backend.chips import CHIPS, DEVICE_KINDS, memory_bytes
from backend.models.model import ModelPlan
from backend.runtime.mesh import Layout, MeshPlan, plan_copies, plan_mesh

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
    """A plan that `benchmarks.tune_plan` compiled: a mesh, and the number of a layer's matrices of which every chip has a copy.

    `seconds` are predicted for one guided step, None if it does not fit into memory. `hbm_bytes` are the bytes on one device,
    with the weights of all networks.
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
    """Return the `Subject` under which the table has the plans for these devices and this model, None for unknown devices.

    `sizes` are the bytes of a layer's matrices by name.
    """
    chip = DEVICE_KINDS.get(device_kind)
    if chip is None:
        return None
    layer_bytes = sum(sizes.values())
    return Subject(chip=chip, devices=num_devices, transformers=num_transformers, layers=num_layers, layer_bytes=layer_bytes)


def best_plan(subject: Subject | None) -> TriedPlan | None:
    """Return the table's best plan for the subject. None if the table has no row for the subject, or no plan fits."""
    return next((line.best for line in read_table() if line.subject == subject), None)


@functools.cache
def read_table() -> tuple[TunedPlan, ...]:
    rows = []
    for entry in json.loads(TABLE.read_text("utf-8")):
        subject = Subject(**{field.name: entry[field.name] for field in dataclasses.fields(Subject)})
        tried = tuple(
            TriedPlan(mesh=MeshPlan(dp=dp, sp=sp, tp=tp), copies=copies, seconds=seconds, hbm_bytes=size)
            for dp, sp, tp, copies, seconds, size in entry["tried"]
        )
        rows.append(TunedPlan(subject=subject, preset=entry["preset"], tried=tried))
    return tuple(rows)


def write_table(lines: list[TunedPlan]) -> None:
    rows = []
    for line in sorted(lines, key=lambda line: dataclasses.astuple(line.subject)):
        tried = [
            [one.mesh.dp, one.mesh.sp, one.mesh.tp, one.copies, one.seconds, one.hbm_bytes]
            for one in sorted(line.tried, key=lambda one: (one.mesh.tp, one.mesh.sp, one.copies))
        ]
        rows.append(json.dumps(dataclasses.asdict(line.subject) | {"preset": line.preset, "tried": tried}))
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n", "utf-8")
    read_table.cache_clear()


def plan_layouts(plan: ModelPlan, layer_matrix_bytes: Callable[[Config, int], dict[str, int]]) -> tuple[Layout, Layout]:
    """Return the layouts for guided and for unguided steps. Weights have the same shardings in both layouts.

    The sizes in `plan.mesh` come first, then the sizes in the table `plans.json`, then the choice of `backend.runtime.mesh`. For
    unguided steps, only the size of tp is taken from `plan.mesh` or from the table. `plan.num_copies` is the number of matrices
    that are copied. Without it, the table sets the number if the mesh of guided steps is the table's mesh and the matrices are
    not quantized.

    `layer_matrix_bytes`, a function of (config, itemsize), returns the bytes of each matrix of a layer by name. The matrices
    whose copies save the most time come first. Raises: RequestError for an illegal mesh.
    """
    config = plan.configs["transformer"]
    full_sizes, heads = layer_matrix_bytes(config, plan.dtype.itemsize), config["num_attention_heads"]
    kind, experts, layers = plan.devices[0].device_kind, plan.spec.num_experts, config["num_layers"]
    best = best_plan(describe_subject(kind, len(plan.devices), full_sizes, layers, experts))
    is_quantized = plan.quantize != "off"
    sizes = layer_matrix_bytes(config, 1) if is_quantized else full_sizes
    asked = {axis: size for axis, size in plan.mesh.items() if size is not None}
    wished = asked or (dataclasses.asdict(best.mesh) if best else {})
    plans = []
    for is_guided in (True, False):
        fixed = {axis: size for axis, size in wished.items() if is_guided or axis == "tp"}
        plans.append(plan_mesh(len(plan.devices), heads=heads, is_guided=is_guided, fixed=fixed))
    if plan.num_copies is not None:
        copied = frozenset(itertools.islice(sizes, plan.num_copies))
    elif best and plans[0] == best.mesh and not is_quantized:
        copied = frozenset(itertools.islice(sizes, best.copies))
    else:
        copied = plan_copies(sizes, layers, plans[0], memory_bytes(kind), experts)
    guided = Layout.create(
        plans[0], plan.devices, copied, copies_on_demand=experts > 1, runtime=plan.runtime, quantize=plan.quantize
    )
    return guided, guided.regroup(plans[1])
