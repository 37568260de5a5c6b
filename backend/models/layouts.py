"""The layout of a model on its devices, for families whose transformer has attention heads and a stack of equal layers."""

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

    The mesh has the sizes that `plan.mesh` fixes. If `plan.mesh` fixes no size, the mesh comes from the table of plans
    (`plans.json`). `backend.runtime.mesh` chooses the sizes that neither source gives. Unguided steps take only the size of tp
    from these sources.

    Some matrices of a layer are copied to every chip. `plan.num_copies` sets the number of these matrices. Without
    `plan.num_copies`, the table sets the number if the chosen mesh is the table's mesh. Else `plan_copies` chooses the matrices.
    Quantized matrices are smaller than the table's matrices, so they have the table's mesh, but `plan_copies` chooses the copies.

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
