"""Parks weights on the host if the devices have no room for all networks beside what their programs need.

The text encoder is the network that is parked: it is the largest after the transformers and runs once per prompt.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from backend.runtime.mesh import as_leaf

HOST = "pinned_host"
MOST_AT_REST = (
    0.6  # of a device's memory: compiled programs fitted beside 0.58 of it, and did not beside 0.66 (docs/lab/tpu-slices.md)
)


def should_park(at_rest_bytes: int, memory_bytes: int | None) -> bool:
    """Whether weights of this size on each device leave too little memory for programs. False if it is not known."""
    return memory_bytes is not None and at_rest_bytes > MOST_AT_REST * memory_bytes


def parked(described: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The same shapes, resting on the host."""
    return {
        name: as_leaf(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(HOST)))
        for name, leaf in described.items()
    }


@contextlib.contextmanager
def on_devices(weights: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """The weights where programs need them; copies of parked ones last until the block ends. Shapes only change places."""
    resting = {id(leaf): leaf for leaf in weights.values() if leaf.sharding.memory_kind == HOST}  # tied names share one
    copies = {key: _fetched(leaf) for key, leaf in resting.items()}
    try:
        yield {name: copies.get(id(leaf), leaf) for name, leaf in weights.items()}
    finally:
        for copy in copies.values():
            if isinstance(copy, jax.Array):
                copy.delete()


def _fetched(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        place = NamedSharding(leaf.sharding.mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
    return jax.device_put(leaf, leaf.sharding.with_memory_kind("device"))


def device_bytes(tree: Any, tied: Sequence[str] = (), among: Any = None) -> int:
    """Bytes that described weights, by name or any tree of them, take on each device: 0 if parked, once if `tied`. With `among`,
    any tree of shapes such as a program's arguments, only those weights that are themselves in it."""
    copies = [name for name in tied if isinstance(tree, dict) and name in tree][1:]
    leaves = jax.tree.leaves({name: leaf for name, leaf in tree.items() if name not in copies} if copies else tree)
    if among is not None:
        there = {id(leaf) for leaf in jax.tree.leaves(among)}
        leaves = [leaf for leaf in leaves if id(leaf) in there]
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in leaves
        if leaf.sharding.memory_kind != HOST
    )
