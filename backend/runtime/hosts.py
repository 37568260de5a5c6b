"""The hosts of one slice. Each host has one process. All processes run the same programs in the same order, on all devices
together.

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
    """The index of this process among the processes of `count` hosts. Only the first host writes files."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_alone(self) -> bool:
        return self.count == 1


def join_hosts(index: int, count: int, coordinator: str, bind: str | None = None) -> Place:
    """Join the other hosts as number `index` of `count`, before jax looks for devices. jax then sees the devices of all hosts.
    Return the place of this process.

    The first host listens at `bind`. The others reach it as `coordinator`, HOST:PORT. Raises: RuntimeError if hosts do not join.
    """
    jax.distributed.initialize(coordinator, count, index, coordinator_bind_address=bind)
    return Place(index=index, count=count)


def put(tree: object, sharding: Sharding) -> Any:
    """Copy arrays to the devices, as `jax.device_put` does, also to devices of several hosts.

    All hosts must pass equal values. `jax.device_put` would compare the values with a program for each array, which takes time.
    This function does not compare them.
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
    """Return the array in a form that this host can read completely.

    If other hosts have parts of the array, the function runs a program, so all hosts must call the function.
    """
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    assert isinstance(array.sharding, NamedSharding), "arrays are on the layout's mesh"
    return _create_copier(NamedSharding(array.sharding.mesh, P()))(array)


@functools.cache
def _create_copier(replicated_spec: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=replicated_spec)
