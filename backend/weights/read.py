"""Weights from safetensors straight into sharded device arrays, tensor by tensor: the host holds one tensor at a time.

A block's matrices are written layer by layer into their stacked arrays, which exist on the devices from the start.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from backend.checkpoints.tensors import TensorPlace, check_shapes, part_tensors
from backend.contract.events import Event, Loading
from backend.errors import ModelError
from backend.weights.stacked import BLOCK_PREFIX, DenoiserWeights

Adjust = Callable[[str, torch.Tensor], torch.Tensor]
SECONDS_BETWEEN_EVENTS = 1.0  # every one is stored with its job
_TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
TIED = ("shared.weight", "encoder.embed_tokens.weight")  # UMT5's token embedding, of which a checkpoint may hold either or both
CLIP_PREFIX = "vision_model."  # before each name in a CLIP encoder that transformers 4 wrote, and so in Wan 2.1's; 5 has none


class Progress:
    """Tells how many of all bytes are read: once a second, when another part begins, and at the end."""

    def __init__(self, total: int, on_event: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._on_event, self._clock = total, on_event, clock
        self._done, self._what, self._told = 0, "", clock()

    def add(self, count: int, what: str) -> None:
        """So many more bytes are read."""
        self._done += count
        if what != self._what or self._done == self._total or self._clock() - self._told >= SECONDS_BETWEEN_EVENTS:
            self._what, self._told = what, self._clock()
            self._on_event(Loading(self._done, self._total, what.replace("_", " ")))


class Part:
    """One network's tensors on disk, by the names that the installed libraries give them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.places = {tensor.removeprefix(CLIP_PREFIX): place for tensor, place in part_tensors(folder, name).items()}
        if all(tied in self.places for tied in TIED):
            del self.places[TIED[1]]

    @property
    def num_bytes(self) -> int:
        return sum(place.num_bytes for place in self.places.values())

    def read(self, names: Collection[str], progress: Progress) -> Iterator[tuple[str, torch.Tensor]]:
        """These tensors, in the order of the files."""
        for name, place in self.places.items():
            if name in names:
                yield name, read_tensor(place)
                progress.add(place.num_bytes, self.name)


def read_tensor(place: TensorPlace) -> torch.Tensor:
    """One tensor from its file. Raises: ModelError where the file has become shorter meanwhile."""
    data = bytearray(place.num_bytes)
    with place.path.open("rb") as file:
        file.seek(place.start)
        if file.readinto(data) != place.num_bytes:
            raise ModelError(f"{place.path.name} ended early", "while it was being read", "is it still being downloaded?")
    flat = torch.frombuffer(data, dtype=_TORCH_DTYPES[place.dtype]) if data else torch.empty(0)
    return flat.reshape(place.shape)


def check_flat(part: Part, described: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that `load_flat` reads. Raises: ModelError where the files hold others."""
    expected = {name: leaf.shape for name, leaf in described.items() if name not in TIED or name in part.places}
    check_shapes(part.name, part.places, expected)
    return expected


def load_flat(part: Part, described: Mapping[str, jax.ShapeDtypeStruct], progress: Progress) -> dict[str, jax.Array]:
    """A network's weights by name, each where and in the dtype that `described` says. Raises: ModelError."""
    expected = check_flat(part, described)
    weights = {name: _on_device(tensor, described[name]) for name, tensor in part.read(expected, progress)}
    tied = [weights[name] for name in TIED if name in weights]
    if not tied and any(name in described for name in TIED):
        raise ModelError(
            f"{part.name} lacks the tensor {TIED[0]}:", "it must hold the token embedding", "give a whole checkpoint"
        )
    return weights | {name: tied[0] for name in TIED if name in described}


def load_transformer(part: Part, described: DenoiserWeights, adjust: Adjust, progress: Progress) -> DenoiserWeights:
    """A transformer's weights, each changed by `adjust(name, tensor)` on its way. Raises: ModelError."""
    expected = checkpoint_shapes(described)
    check_shapes(part.name, part.places, expected)
    weights = DenoiserWeights(outer={}, blocks={name: _zeros(leaf) for name, leaf in described.blocks.items()})
    write_transformer(part, described, weights, expected, adjust, progress)
    return weights


def write_transformer(
    part: Part,
    described: DenoiserWeights,
    weights: DenoiserWeights,
    names: Collection[str],
    adjust: Adjust,
    progress: Progress,
) -> None:
    """Read these tensors into `weights`, whose dictionaries are changed in place."""
    for name, tensor in part.read(names, progress):
        layer, inner = split_name(name)
        adjusted = adjust(name, tensor)
        if layer is None:
            weights.outer[name] = _on_device(adjusted, described.outer[name])
        else:
            leaf = described.blocks[inner]
            value = _on_device(adjusted, _layer_of(leaf))
            weights.blocks[inner] = _writer(leaf.sharding)(weights.blocks[inner], value, layer)


def checkpoint_shapes(described: DenoiserWeights) -> dict[str, tuple[int, ...]]:
    """Every tensor of a transformer as the checkpoint names and shapes it."""
    shapes = {name: tuple(leaf.shape) for name, leaf in described.outer.items()}
    for inner, leaf in described.blocks.items():
        for layer in range(leaf.shape[0]):
            shapes[f"{BLOCK_PREFIX}{layer}.{inner}"] = tuple(_layer_of(leaf).shape)
    return shapes


def split_name(name: str) -> tuple[int | None, str]:
    """The layer and the name within it, or None and the name."""
    if not name.startswith(BLOCK_PREFIX):
        return None, name
    layer, _, inner = name.removeprefix(BLOCK_PREFIX).partition(".")
    return int(layer), inner


def _layer_of(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """One layer of a stacked array as the checkpoint has it: matrices [out, in]."""
    _, *axes = (*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec)))
    shape = leaf.shape[1:]
    if len(shape) == 2:
        shape, axes = shape[::-1], axes[::-1]
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(leaf.sharding.mesh, P(*axes)))


@functools.cache
def _writer(sharding: NamedSharding) -> Callable:
    """Puts one layer into a stacked array, in its own memory."""

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
