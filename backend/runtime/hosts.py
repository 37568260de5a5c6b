"""The hosts of one slice. Each host has one process, and each program runs on the devices of all hosts. So all processes run the
same programs in the same order. Usually only one host exists, and its process has the default `Place`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The `index` of this process among the processes of `count` hosts. Only the process with index 0 writes files."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_alone(self) -> bool:
        return self.count == 1


def put(tree: object, sharding: Sharding) -> Any:
    """Copy a tree of arrays to the devices of `sharding`, which can belong to several hosts.

    All hosts must pass equal values. `jax.device_put` would check this by running a program for each array, which takes time.
    """

    def put_on_this_host(leaf: object) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            return jax.device_put(leaf, sharding)
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.device_put(tree, sharding) if sharding.is_fully_addressable else jax.tree.map(put_on_this_host, tree)


def gather_to_host(array: jax.Array) -> jax.Array:
    """Return an equal array that this host can read completely. All hosts must call this function."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    assert isinstance(array.sharding, NamedSharding), "arrays are on the layout's mesh"
    return _create_copier(NamedSharding(array.sharding.mesh, P()))(array)


@functools.cache
def _create_copier(replicated_spec: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=replicated_spec)
