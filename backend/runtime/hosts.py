"""The hosts of one slice: a process on each, which all run the same programs in the same order, on all devices together.

Whoever is alone, as usual, needs nothing of this: then `HERE` is the first of one.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass
class Place:
    """Which of the `count` hosts this process is. Only the first writes files."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_alone(self) -> bool:
        return self.count == 1


HERE = Place()
"""This process's."""


def join(index: int, count: int, coordinator: str, bind: str | None = None) -> None:
    """Makes this process number `index` of `count`, before jax is asked for its devices: then it sees those of all. The first one
    listens at `bind` for the others, who reach it as `coordinator`, HOST:PORT. Raises: RuntimeError if they do not come."""
    jax.distributed.initialize(coordinator, count, index, coordinator_bind_address=bind)
    HERE.index, HERE.count = index, count


def put(tree: Any, sharding: Sharding) -> Any:
    """As `jax.device_put`; also onto devices of which other hosts hold some. All hosts must give the same values: unlike jax,
    this does not compare them, which takes a program and a moment for each array."""
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: _put_here(leaf, sharding), tree)


def _put_here(leaf: Any, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        return jax.device_put(leaf, sharding)
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def whole(array: jax.Array) -> jax.Array:
    """The array, so that this host can read all of it. If other hosts hold parts, this is a program that all of them run."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    assert isinstance(array.sharding, NamedSharding), "arrays lie on the layout's mesh"
    return _copier(NamedSharding(array.sharding.mesh, P()))(array)


@functools.cache
def _copier(replicated_spec: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=replicated_spec)
