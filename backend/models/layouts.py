"""How a model lies on its devices, for families whose transformer has attention heads and a stack of equal layers."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from backend.chips import memory_bytes
from backend.models.model import ModelPlan
from backend.models.plans import best_plan, subject_of
from backend.runtime.mesh import Layout, plan_copies, plan_mesh


def plan_layouts(
    plan: ModelPlan, layer_matrix_bytes: Callable[[Mapping[str, Any], int], dict[str, int]]
) -> tuple[Layout, Layout]:
    """The layouts of all devices for guided and for unguided steps; weights lie in the same places in both.

    The mesh and the copies are those of the table of plans if it has this model on this slice, and the mesh is the table's; else
    those of the rules of `backend.runtime.mesh`. `layer_matrix_bytes(config, itemsize)` are the bytes of a layer's matrices by
    name, those that gain most from a copy first. Raises: RequestError.
    """
    config = plan.configs["transformer"]
    sizes, heads = layer_matrix_bytes(config, plan.dtype.itemsize), config["num_attention_heads"]
    kind, experts, layers = plan.devices[0].device_kind, plan.kind.num_experts, config["num_layers"]
    best = best_plan(subject_of(kind, len(plan.devices), sizes, layers, experts))
    asked = {axis: size for axis, size in plan.mesh.items() if size is not None}
    wished = asked or (dataclasses.asdict(best.mesh) if best else {})
    plans = []
    for is_guided in (True, False):
        fixed = {axis: size for axis, size in wished.items() if is_guided or axis == "tp"}
        plans.append(plan_mesh(len(plan.devices), heads=heads, is_guided=is_guided, fixed=fixed))
    if plan.num_copies is not None:
        copied = frozenset(itertools.islice(sizes, plan.num_copies))
    elif best and plans[0] == best.mesh:
        copied = frozenset(itertools.islice(sizes, best.copies))
    else:
        copied = plan_copies(sizes, layers, plans[0], memory_bytes(kind), experts)
    guided = Layout.create(plans[0], plan.devices, copied, copies_on_demand=experts > 1)
    return guided, guided.regroup(plans[1])
