"""The hosts of one slice. Each host has one process. All processes run the same programs in the same order, and each program runs
on the devices of all hosts.

Usually only one host exists, and its process has the default `Place`.
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


def join_hosts(index: int, count: int, coordinator: str, bind: str | None = None) -> Place:
    """Connect this process to the processes of the other hosts, and return its `Place`. `index` counts from 0.

    Call this before jax looks for devices. jax then sees the devices of all hosts. The first host listens at the address `bind`.
    The other hosts connect to the address `coordinator`, HOST:PORT. Raises: RuntimeError if a host does not connect.
    """
    jax.distributed.initialize(coordinator, count, index, coordinator_bind_address=bind)
    return Place(index=index, count=count)


def put(tree: object, sharding: Sharding) -> Any:
    """Copy a tree of arrays to the devices of `sharding`, which can belong to several hosts.

    All hosts must pass equal values. This function does not check that. `jax.device_put` would check it by running a program for
    each array, which takes time.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: _put_on_this_host(leaf, sharding), tree)


def _put_on_this_host(leaf: object, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        return jax.device_put(leaf, sharding)
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def gather_to_host(array: jax.Array) -> jax.Array:
    """Return an equal array that this host can read completely.

    If parts of the array are on other hosts, a program copies them to this host. Therefore all hosts must call this function.
    """
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    assert isinstance(array.sharding, NamedSharding), "arrays are on the layout's mesh"
    return _create_copier(NamedSharding(array.sharding.mesh, P()))(array)


@functools.cache
def _create_copier(replicated_spec: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=replicated_spec)
