"""Weights that rest on the host, where the devices have no room for all networks beside what their programs need.

It is the text encoder that is parked: it is the largest network after the transformers and works once a prompt.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from backend.weights.read import TIED

HOST = "pinned_host"
MOST_AT_REST = 0.6  # of a device's memory; at 720p Wan 2.1 14B has 0.58 on v6e:2x2 and fits, 2.2 5B 0.66 on one v6e and does not


def should_park(at_rest_bytes: int, memory_bytes: int | None) -> bool:
    """Whether weights of this size on each device leave too little of it. Where the memory is not known, nothing is parked."""
    return memory_bytes is not None and at_rest_bytes > MOST_AT_REST * memory_bytes


def parked(described: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
    """The same shapes, resting on the host."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(HOST))
        for name, leaf in described.items()
    }


@contextlib.contextmanager
def on_devices(weights: Mapping[str, jax.Array]) -> Iterator[dict[str, jax.Array]]:
    """The weights where programs take them; copies of parked ones last until the block ends."""
    resting = {id(array): array for array in weights.values() if array.sharding.memory_kind == HOST}  # tied names share one
    copies = {key: jax.device_put(array, array.sharding.with_memory_kind("device")) for key, array in resting.items()}
    try:
        yield {name: copies.get(id(array), array) for name, array in weights.items()}
    finally:
        for copy in copies.values():
            copy.delete()


def device_bytes(tree: Any) -> int:
    """Bytes that described weights, by name or any tree of them, take on each device: none if parked, once if tied."""
    names = tree if isinstance(tree, dict) else {}
    leaves = [leaf for name, leaf in names.items() if name != TIED[1] or TIED[0] not in names] or jax.tree.leaves(tree)
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in leaves
        if leaf.sharding.memory_kind != HOST
    )
