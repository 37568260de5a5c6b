"""Choose a model's mesh, and the matrices of which each chip has a copy. The transformer must be a stack of equal layers."""

import dataclasses
import itertools
from collections.abc import Callable

from backend.checkpoints.json_files import Config
from backend.chips import memory_bytes
from backend.models.model import ModelPlan
from backend.models.plans import best_plan, describe_subject
from backend.runtime.mesh import Layout, plan_copies, plan_mesh


def plan_layouts(plan: ModelPlan, layer_matrix_bytes: Callable[[Config, int], dict[str, int]]) -> tuple[Layout, Layout]:
    """Return the layouts for guided and for unguided steps. Weights have the same shardings in both layouts.

    The mesh has the axis sizes in `plan.mesh`. If `plan.mesh` sets no size, the sizes are read from the table `plans.json`, if
    the table has a plan for the model and the devices. `backend.runtime.mesh` chooses all other sizes. For unguided steps, only
    the size of tp is taken from `plan.mesh` or from the table.

    Some matrices of a layer are copied to every chip. `plan.num_copies` sets the number of these matrices. Without
    `plan.num_copies`, the table sets the number if the mesh of guided steps is the table's mesh and the matrices are not
    quantized. Otherwise `plan_copies` chooses the matrices.

    Args:
        layer_matrix_bytes: a function of (config, itemsize) that returns the bytes of each matrix of a layer by name. The
            matrices whose copies save the most time come first.

    Raises: RequestError for an illegal mesh.
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
