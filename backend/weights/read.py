"""Reads weights from safetensors files into sharded device arrays, tensor by tensor: the host holds one tensor at a time.

Matrices of stacked layers are written layer by layer into their stacked arrays, which exist on the devices from the start.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.tensors import TensorPlace, check_shapes, checkpoint_tensors, part_tensors
from backend.contract.events import Event, Loading
from backend.errors import ModelError
from backend.weights.stacked import StackedWeights

Adjust = Callable[[str, torch.Tensor], torch.Tensor]
SECONDS_BETWEEN_EVENTS = 1.0  # every event is stored with its job
_TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class LoadProgress:
    """Reports how many of all bytes have been read: once a second, when another part begins, and at the end."""

    def __init__(self, total: int, on_event: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._on_event, self._clock = total, on_event, clock
        self._done, self._what, self._reported_at = 0, "", clock()

    def add(self, count: int, what: str) -> None:
        """Counts `count` more bytes, of the part `what`."""
        self._done += count
        if what != self._what or self._done == self._total or self._clock() - self._reported_at >= SECONDS_BETWEEN_EVENTS:
            self._what, self._reported_at = what, self._clock()
            self._on_event(Loading(self._done, self._total, what.replace("_", " ")))


class Part:
    """One network's tensors on disk, by the names that the installed libraries give them: `renamed` makes those from the file's.

    `tied` are names of one and the same tensor; a checkpoint may hold any of them.
    """

    def __init__(
        self, source: Path | Checkpoint, name: str, renamed: Callable[[str], str] = str, tied: Sequence[str] = ()
    ) -> None:
        """`source` is the checkpoint, or its folder."""
        self.name, self.tied = name, tuple(tied)
        places = checkpoint_tensors(source, name) if isinstance(source, Checkpoint) else part_tensors(source, name)
        self.places = {renamed(tensor): place for tensor, place in places.items()}
        present = [name for name in self.tied if name in self.places]
        for copy in present[1:]:
            del self.places[copy]

    def num_bytes(self, names: Collection[str]) -> int:
        """The bytes of these tensors."""
        return sum(self.places[name].num_bytes for name in names)

    def read(self, names: Collection[str], progress: LoadProgress) -> Iterator[tuple[str, torch.Tensor]]:
        """These tensors, in the order of the files."""
        for name, place in self.places.items():
            if name in names:
                yield name, read_tensor(place)
                progress.add(place.num_bytes, self.name)


def read_tensor(place: TensorPlace) -> torch.Tensor:
    """One tensor from its file. Raises: ModelError if the file has become shorter meanwhile."""
    data = bytearray(place.num_bytes)
    with place.path.open("rb") as file:
        file.seek(place.start)
        if file.readinto(data) != place.num_bytes:
            raise ModelError(f"{place.path.name} ended early", "while it was being read", "is it still being downloaded?")
    flat = torch.frombuffer(data, dtype=_TORCH_DTYPES[place.dtype]) if data else torch.empty(0)
    return flat.reshape(place.shape)


def check_flat(part: Part, described: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that `load_flat` reads. Raises: ModelError if the files hold others."""
    expected = {name: leaf.shape for name, leaf in described.items() if name not in part.tied or name in part.places}
    check_shapes(part.name, part.places, expected)
    if part.tied and not any(name in part.places for name in part.tied):
        raise ModelError(f"{part.name} lacks the tensor {part.tied[0]}:", "it must hold this tensor", "give a whole checkpoint")
    return expected


def load_flat(part: Part, described: Mapping[str, jax.ShapeDtypeStruct], progress: LoadProgress) -> dict[str, jax.Array]:
    """A network's weights by name, with the places and dtypes of `described`. Raises: ModelError."""
    expected = check_flat(part, described)
    weights = {name: _on_device(tensor, described[name]) for name, tensor in part.read(expected, progress)}
    tied = [weights[name] for name in part.tied if name in weights]
    return weights | {name: tied[0] for name in part.tied if name in described}


def check_stacked(part: Part, described: StackedWeights) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that `load_stacked` reads. Raises: ModelError if the files hold others."""
    expected = checkpoint_shapes(described)
    check_shapes(part.name, part.places, expected)
    return expected


def load_stacked(part: Part, described: StackedWeights, adjust: Adjust, progress: LoadProgress) -> StackedWeights:
    """A network's weights, each changed by `adjust(name, tensor)` first. Raises: ModelError."""
    expected = check_stacked(part, described)
    stacks = {prefix: {name: _zeros(leaf) for name, leaf in stack.items()} for prefix, stack in described.stacks.items()}
    weights = StackedWeights(outer={}, stacks=stacks)
    write_stacked(part, described, weights, expected, adjust, progress)
    return weights


def write_stacked(
    part: Part,
    described: StackedWeights,
    weights: StackedWeights,
    names: Collection[str],
    adjust: Adjust,
    progress: LoadProgress,
) -> None:
    """Read these tensors into `weights`, whose dictionaries are changed in place."""
    for name, tensor in part.read(names, progress):
        prefix, layer, inner = split_name(name, described.stacks)
        adjusted = adjust(name, tensor)
        if prefix is None:
            weights.outer[name] = _on_device(adjusted, described.outer[name])
        else:
            leaf, stack = described.stacks[prefix][inner], weights.stacks[prefix]
            value = _on_device(adjusted, _layer_of(leaf))
            stack[inner] = _writer(leaf.sharding)(stack[inner], value, layer)


def checkpoint_shapes(described: StackedWeights) -> dict[str, tuple[int, ...]]:
    """Every tensor of a network as the checkpoint names and shapes it."""
    shapes = {name: tuple(leaf.shape) for name, leaf in described.outer.items()}
    for prefix, stack in described.stacks.items():
        for inner, leaf in stack.items():
            for layer in range(leaf.shape[0]):
                shapes[f"{prefix}{layer}.{inner}"] = tuple(_layer_of(leaf).shape)
    return shapes


def split_name(name: str, prefixes: Iterable[str]) -> tuple[str | None, int, str]:
    """The stack's prefix, the layer and the name within it; or None, 0 and the name for a tensor outside all stacks."""
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
    if prefix is None:
        return None, 0, name
    layer, _, inner = name.removeprefix(prefix).partition(".")
    return prefix, int(layer), inner


def _layer_of(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """One layer of a stacked array as the checkpoint has it: matrices [out, in]."""
    _, *axes = (*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec)))
    shape = leaf.shape[1:]
    if len(shape) == 2:
        shape, axes = shape[::-1], axes[::-1]
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(leaf.sharding.mesh, P(*axes)))


@functools.cache
def _writer(sharding: NamedSharding) -> Callable:
    """A program that writes one layer into a stacked array in place."""

    def write(stack: jax.Array, value: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stack, value.T if value.ndim == 2 else value, layer, 0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)


def _zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)


def _on_device(tensor: torch.Tensor, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.device_put(_as_numpy(tensor, leaf.dtype), leaf.sharding)


def _as_numpy(tensor: torch.Tensor, dtype: jnp.dtype) -> np.ndarray:
    """The tensor's values in this dtype; numpy's own bfloat16 is a view of torch's bits."""
    if dtype == jnp.bfloat16:
        return tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    if dtype == jnp.float32:
        return tensor.to(torch.float32).contiguous().numpy()
    raise AssertionError(f"no model is run in {dtype}")
