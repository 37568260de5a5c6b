"""A network's weights with stacked layers, so that one program runs all layers of a stack. A network can have several stacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from backend.runtime.mesh import Layout, Role

Stacks = Mapping[str, Mapping[str, Any]]
"""Stacked arrays, or their shapes with shardings: by prefix, then by name within a layer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedWeights:
    """A network's parameters.

    `outer` maps names in the checkpoint to the parameters outside the layers. `stacks` maps the prefix of a stack's layers in the
    checkpoint (such as "layers.") to the stack. A stack maps names within a layer to arrays [layers, ...].

    Matrices in `stacks` are [layers, in, out], the transposed matrices of the checkpoint. XLA's CPU matrix product is up to 1.3
    times faster in this order (4,680 x 1,536 by 1,536 x 1,536, measured on two cores).
    """

    outer: dict[str, jax.Array]
    stacks: dict[str, dict[str, jax.Array]]

    def with_stacks(self, others: Stacks) -> StackedWeights:
        stacks = {prefix: {**stack, **others.get(prefix, {})} for prefix, stack in self.stacks.items()}
        return dataclasses.replace(self, stacks=stacks)


def stack_weights(state: Mapping[str, jax.Array], prefixes: Iterable[str]) -> StackedWeights:
    """Sort a checkpoint's tensors into outer tensors and stacks. Tensors that only some layers have are outer.

    The stacks are copies, so this is for shapes and for models that are already in memory.
    """
    stacks: dict[str, dict[str, jax.Array]] = {}
    for prefix in prefixes:
        own = [name.removeprefix(prefix).partition(".") for name in state if name.startswith(prefix)]
        num_layers, stacks[prefix] = len({layer for layer, _, _ in own}), {}
        for inner in (inner for layer, _, inner in own if layer == "0"):
            each = [f"{prefix}{layer}.{inner}" for layer in range(num_layers)]
            if all(name in state for name in each):
                layers = (state[name] for name in each)
                stacks[prefix][inner] = jnp.stack([layer.T if layer.ndim == 2 else layer for layer in layers])
    outer = {name: value for name, value in state.items() if split_name(name, stacks)[0] is None}
    return StackedWeights(outer=outer, stacks=stacks)


def split_name(name: str, stacks: Mapping[str, Mapping[str, object]]) -> tuple[str | None, int, str]:
    """Return the stack's prefix, the layer and the name within it; or None, 0 and the name for a tensor outside all stacks."""
    prefix = next((prefix for prefix in stacks if name.startswith(prefix)), None)
    layer, _, inner = name.removeprefix(prefix or "").partition(".")
    return (prefix, int(layer), inner) if prefix is not None and inner in stacks[prefix] else (None, 0, name)


def weights_sharding(shapes: StackedWeights, layout: Layout, matrix_role: Callable[[str], Role]) -> StackedWeights:
    """Return `shapes` with their shardings. `matrix_role(name)` returns the role of a matrix by its name within a layer."""

    def stacked(name: str, shape: tuple[int, ...]) -> Any:
        return layout.stacked_weight(name, shape, matrix_role(name))

    return StackedWeights(
        outer=layout.describe_weights(shapes.outer, layout.outer_weight),
        stacks={prefix: layout.describe_weights(stack, stacked) for prefix, stack in shapes.stacks.items()},
    )
