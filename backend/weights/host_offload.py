"""Keep weights on the host if the devices cannot hold all networks besides the memory that programs need.

The text encoder is offloaded first, because it is the largest network after the transformers and runs once per prompt. If that is
not enough, the devices hold only the transformer whose steps run, and none while prompts are encoded or latents are decoded.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

HOST = "pinned_host"
# Largest share of a device's memory for weights. With weights that filled 0.58 of the memory, programs still fitted; with 0.66,
# they did not (docs/lab/tpu-slices.md).
MOST_AT_REST = 0.6
# Largest share of a device's memory for all weights together while prompts are encoded. With 0.66 the encoder's program fitted,
# with 0.84 it did not. Both results are predictions.
MOST_WHILE_ENCODING = 0.75


def should_offload(bytes_per_device: int, memory_bytes: int | None, most: float = MOST_AT_REST) -> bool:
    """Return whether weights of this size on each device take more than the share `most` of its memory, False if the memory size
    is unknown."""
    return memory_bytes is not None and bytes_per_device > most * memory_bytes


def describe_offloaded(described: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(HOST)), described
    )


def is_offloaded(weights: Any) -> bool:
    """Return whether at least one leaf of the tree is on the host. Leaves are arrays, or their shapes and shardings."""
    return any(leaf.sharding.memory_kind == HOST for leaf in jax.tree.leaves(weights))


def copy_to_devices(weights: Any) -> Any:
    """Return the tree with all weights on the devices. Weights on the host are copied. Described weights change shardings
    only."""
    return jax.tree.map(lambda leaf: _copy_to_device(leaf) if leaf.sharding.memory_kind == HOST else leaf, weights)


def move_to_host(weights: Any) -> Any:
    """Move a tree of arrays to the host, one array after another, and delete the arrays on the devices. Return the new arrays."""

    def move(leaf: jax.Array) -> jax.Array:
        moved = jax.block_until_ready(jax.device_put(leaf, leaf.sharding.with_memory_kind(HOST)))
        leaf.delete()
        return moved

    return jax.tree.map(move, weights)


@contextlib.contextmanager
def load_onto_devices(weights: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """Yield all weights on the devices, as `copy_to_devices`. The copies are deleted when the `with` block ends."""
    on_host = {id(leaf): leaf for leaf in weights.values() if leaf.sharding.memory_kind == HOST}  # tied names share one array
    copies = {key: _copy_to_device(leaf) for key, leaf in on_host.items()}
    try:
        yield {name: copies.get(id(leaf), leaf) for name, leaf in weights.items()}
    finally:
        for copy in copies.values():
            if isinstance(copy, jax.Array):
                copy.delete()


def _copy_to_device(leaf: Any) -> object:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        place = NamedSharding(leaf.sharding.mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
    return jax.device_put(leaf, leaf.sharding.with_memory_kind("device"))


def device_bytes(tree: Any, tied: Sequence[str] = (), among: object = None) -> int:
    """Return how many bytes described weights need on each device. Weights on the host need 0 bytes.

    `tied` are names that share one weight. With `among`, such as a program's arguments, only objects that are leaves of both
    count.
    """
    copies = [name for name in tied if isinstance(tree, dict) and name in tree][1:]
    leaves = jax.tree.leaves({name: leaf for name, leaf in tree.items() if name not in copies} if copies else tree)
    if among is not None:
        among_ids = {id(leaf) for leaf in jax.tree.leaves(among)}
        leaves = [leaf for leaf in leaves if id(leaf) in among_ids]
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in leaves
        if leaf.sharding.memory_kind != HOST
    )
