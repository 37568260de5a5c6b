"""How a model lies on its devices, for families whose transformer has attention heads and a stack of equal layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.chips import memory_bytes
from backend.families.model import ModelPlan
from backend.runtime.mesh import Layout, plan_copies, plan_mesh


def plan_layouts(
    plan: ModelPlan, layer_matrix_bytes: Callable[[Mapping[str, Any], int], dict[str, int]]
) -> tuple[Layout, Layout]:
    """The layouts of all devices for guided and for unguided steps; weights lie in the same places in both.

    `layer_matrix_bytes(config, itemsize)` are the bytes of a layer's matrices by name, those that gain most from a copy first.
    Raises: RequestError.
    """
    config, memory = plan.configs["transformer"], memory_bytes(plan.devices[0].device_kind)
    sizes, heads = layer_matrix_bytes(config, plan.dtype.itemsize), config["num_attention_heads"]
    plans = []
    for is_guided in (True, False):
        fixed = {axis: size for axis, size in plan.mesh.items() if is_guided or axis == "tp"}
        plans.append(plan_mesh(len(plan.devices), heads=heads, is_guided=is_guided, asked=fixed))
    copied = plan_copies(sizes, config["num_layers"], plans[0], memory, plan.kind.num_experts)
    return tuple(Layout.over(one, plan.devices, copied) for one in plans)
