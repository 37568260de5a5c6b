"""A network's weights that a worker keeps on the devices, or in the host's memory for a fast return to the devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from backend.checkpoints.fingerprints import Fingerprint, fingerprint_files, have_equal_bytes
from backend.weights.expert import Expert
from backend.weights.host_offload import HOST, device_bytes
from backend.weights.place import is_host
from backend.weights.read import Part

COPIED_AT_ONCE = 1 << 30  # maximum bytes that are in both memories at a time while a network moves


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """The identity of a network's weights. Models share a network if their `Content` is equal.

    `tensors` are the names, dtypes and shapes in the files. `described` and `arranged` are the shapes, dtypes and shardings on
    the devices before and after `Network.arrange`.
    """

    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    described: Any
    arranged: Any
    fingerprints: tuple[Fingerprint, ...]

    @classmethod
    def of_part(cls, part: Part, described: Any, arranged: Any) -> Content:
        """Return the identity of the weights in `part`, with fingerprints of its current files. Raises: OSError."""
        return cls(
            tensors=tuple(sorted((name, place.dtype, tuple(place.shape)) for name, place in part.places.items())),
            described=_shapes_and_shardings(described),
            arranged=_shapes_and_shardings(arranged),
            fingerprints=fingerprint_files(part.files),
        )

    def equals(self, other: Content) -> bool:
        mine, others = ((one.tensors, one.described, one.arranged) for one in (self, other))
        return mine == others and have_equal_bytes(self.fingerprints, other.fingerprints)


def _shapes_and_shardings(described: Any) -> tuple:
    leaves, structure = jax.tree.flatten(described)
    return structure, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)


class CachedNetwork:
    """A network's weights, on the devices or on the host. The weights of an `expert` change when LoRAs are merged."""

    def __init__(self, content: Content, weights: Any = None, expert: Expert | None = None) -> None:
        self.content, self.expert = content, expert
        self._weights = weights
        self.is_on_host = False
        arrays = list({id(leaf): leaf for leaf in jax.tree.leaves(self.weights)}.values())  # tied weights share one array
        self.num_bytes = sum(leaf.nbytes for leaf in arrays)
        self.bytes_per_device = device_bytes(arrays)

    @property
    def weights(self) -> Any:
        return self._weights if self.expert is None else self.expert.weights

    def move(self, to_host: bool) -> None:
        """Move all arrays into the host's memory or back to the devices, except arrays that are there already, such as arrays of
        CPU devices. The caller must make sure that no program uses the arrays.

        At most `COPIED_AT_ONCE` bytes, or one larger array, are in both memories at a time.
        """
        if to_host == self.is_on_host:
            return
        leaves, structure = jax.tree.flatten(self.weights)
        if to_host:
            self._device_shardings = [leaf.sharding for leaf in leaves]
        moved: dict[int, jax.Array] = {}
        moves: list[tuple[jax.Array, jax.Array]] = []
        for index, (leaf, sharding) in enumerate(zip(leaves, self._device_shardings, strict=True), 1):
            target = sharding.with_memory_kind(HOST) if to_host and not is_host(leaf) else sharding
            if id(leaf) not in moved:
                moved[id(leaf)] = leaf if leaf.sharding == target else jax.device_put(leaf, target)
                if moved[id(leaf)] is not leaf:
                    moves.append((leaf, moved[id(leaf)]))
            if index == len(leaves) or sum(old.nbytes for old, _ in moves) >= COPIED_AT_ONCE:
                jax.block_until_ready([new for _, new in moves])
                for old, _ in moves:
                    old.delete()
                moves.clear()
        tree = jax.tree.unflatten(structure, [moved[id(leaf)] for leaf in leaves])
        if self.expert is None:
            self._weights = tree
        else:
            self.expert.weights = tree
        self.is_on_host = to_host
