"""Read weights from safetensors files into sharded device arrays, several tensors at a time. The host's memory holds at most
`READ_AHEAD` bytes of tensors, or one larger tensor. Matrices are written layer by layer into their stacked arrays.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.tensors import FP4, TensorPlace, check_shapes, part_tensors
from backend.errors import ModelError
from backend.runtime.mesh import Shaped
from backend.runtime.quantized_linear import DTYPES, TORCH_DTYPES
from backend.schemas.events import Event, Loading
from backend.weights.place import (
    allocate_host_memory,
    copy_to_devices,
    create_empty_stack,
    describe_layer,
    is_host,
    write_by_program,
    write_in_place,
)
from backend.weights.stacked import StackedWeights, split_name
from kernels.token_quantize import LARGEST, SMALLEST_PEAK

Adjust = Callable[[str, torch.Tensor], torch.Tensor]
T = TypeVar("T")
Work = Callable[[str, TensorPlace], T]
SCALE_SUFFIX = "_scale"  # a matrix NAME of a stack is quantized if the stack also has NAME_scale, which no checkpoint contains
QUANTIZED_ROWS = 256  # rows that are quantized at a time, so that the float32 copies stay small
SECONDS_BETWEEN_EVENTS = 1.0  # minimum time between two events, because every event is stored with its job
READERS = 8  # maximum threads; a disk of a TPU VM needs several requests at a time to be fast
READ_AHEAD = 400_000_000  # maximum bytes of tensors in the host's memory at a time
_TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_QUANTIZED_DTYPES = {DTYPES[format]: dtype for format, dtype in TORCH_DTYPES.items()}
_FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])  # E2M1 numbers by their four bits


class LoadProgress:
    """Reports the bytes read so far: once a second, when another part starts, and at the end."""

    def __init__(self, total: int, on_event: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._on_event, self._clock = total, on_event, clock
        self._done, self._what, self._reported_at = 0, "", clock()

    def add(self, count: int, what: str) -> None:
        self._done += count
        if what != self._what or self._done == self._total or self._clock() - self._reported_at >= SECONDS_BETWEEN_EVENTS:
            self._what, self._reported_at = what, self._clock()
            self._on_event(Loading(self._done, self._total, what.replace("_", " ")))


class Part:
    """One network's tensors on disk, by their names in the installed diffusers or transformers. `renamed` converts a name in the
    file to this name. `tied` are names that share one tensor, of which a checkpoint contains one or more.
    """

    def __init__(
        self, source: Path | Checkpoint, name: str, renamed: Callable[[str], str] = str, tied: Sequence[str] = ()
    ) -> None:
        self.name, self.tied = name, tuple(tied)
        places = source.tensors(name) if isinstance(source, Checkpoint) else part_tensors(source, name)
        self.places = {renamed(tensor): place for tensor, place in places.items()}
        present = [name for name in self.tied if name in self.places]
        for copy in present[1:]:
            del self.places[copy]

    @property
    def files(self) -> list[Path]:
        places = [one for place in self.places.values() for one in (place, place.scale) if one is not None]
        return list(dict.fromkeys(place.path for place in places))

    def read(
        self, names: Collection[str], work: Callable[[str, TensorPlace], T], progress: LoadProgress
    ) -> Iterator[tuple[str, T]]:
        """Call `work(name, place)` for each of these tensors in several threads, and yield the results in the order of `places`.

        At most `READ_AHEAD` bytes of tensors are being processed or wait. Raises: any error of `work`; ModelError if a file has
        become shorter meanwhile.
        """
        threads = min(READERS, len(os.sched_getaffinity(0)))
        ahead: deque[tuple[str, Future[T]]] = deque()
        pending_bytes = 0
        with ThreadPoolExecutor(threads, "reader") as pool:
            try:
                for name in (name for name in self.places if name in names):
                    size = self.places[name].num_bytes
                    while ahead and (len(ahead) > threads or pending_bytes + size > READ_AHEAD):
                        pending_bytes -= self.places[ahead[0][0]].num_bytes
                        yield self._next_result(ahead, progress)
                    ahead.append((name, pool.submit(work, name, self.places[name])))
                    pending_bytes += size
                while ahead:
                    yield self._next_result(ahead, progress)
            finally:
                pool.shutdown(cancel_futures=True)

    def _next_result(self, ahead: deque[tuple[str, Future[T]]], progress: LoadProgress) -> tuple[str, T]:
        name, future = ahead.popleft()
        result = future.result()
        progress.add(self.places[name].num_bytes, self.name)
        return name, result


class _Memory(threading.local):
    """Memory of a thread for one tensor after another. It is reused, because fresh memory costs as much time as the reading."""

    def __init__(self) -> None:
        self._memory = allocate_host_memory(0)

    def reserve(self, count: int) -> np.ndarray:
        """Return `count` bytes, which are valid until the thread's next call."""
        if count > self._memory.nbytes:
            self._memory = allocate_host_memory(count)
        return self._memory[:count]


def read_tensor(place: TensorPlace, memory: np.ndarray | None = None) -> torch.Tensor:
    """Read one tensor from its file, into `memory` if given, a uint8 array of its size. A tensor with a scale becomes float32.

    Raises: ModelError if the file has become shorter meanwhile.
    """
    data = allocate_host_memory(place.num_bytes) if memory is None else memory
    with place.path.open("rb", buffering=0) as file:
        file.seek(place.start)
        done = 0
        while done < place.num_bytes and (count := file.readinto(data.data[done:])):  # Linux reads 2 GB at most at a time
            done += count
    if done != place.num_bytes:
        raise ModelError(f"{place.path.name} ended early", "while it was being read", "is it still being downloaded?")
    stored = torch.from_numpy(data)
    if place.dtype == FP4:  # each byte contains two numbers in the format E2M1, the first in the low four bits
        tensor = _FP4_VALUES[torch.stack([stored & 15, stored >> 4], dim=-1).int()]
    else:
        tensor = stored.view(_TORCH_DTYPES[place.dtype])
    tensor = tensor.reshape(place.shape)
    if place.scale is not None:
        tensor = tensor.float() * _read_scale(place, place.scale)
    return torch.cat(tensor.chunk(2)[::-1]) if place.swaps_halves else tensor


def _read_scale(place: TensorPlace, scale: TensorPlace) -> torch.Tensor:
    """Read the scale of the tensor at `place`: one number for the tensor, for each row, or for each number of the tensor."""
    values = read_tensor(scale).float()
    if place.scale_block is None:
        return values.reshape(-1, *[1] * (len(place.shape) - 1))
    rows, columns = (-(-length // size) for length, size in zip(place.shape, place.scale_block, strict=True))
    if place.dtype == FP4:
        # NVIDIA's matrix products read the scales in tiles of 128 rows and 4 columns. A tile is stored as 32 lines of 16 numbers:
        # 4 numbers of each of four rows, which are 32 rows apart. Source: docs.nvidia.com/cuda/cublas, "1D Block Scaling Factors
        # Layout".
        values = values.reshape(-(-rows // 128), -(-columns // 4), 32, 4, 4).permute(0, 3, 2, 1, 4)
        values = values.flatten(0, 2).flatten(1)[:rows, :columns]
    for axis, size in enumerate(place.scale_block):
        values = values.repeat_interleave(size, axis)
    return values[tuple(map(slice, place.shape))]


def check_flat(part: Part, described: Mapping[str, Shaped]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that `load_flat` reads. Raises: ModelError for a missing tensor or another shape."""
    expected = {name: leaf.shape for name, leaf in described.items() if name not in part.tied or name in part.places}
    check_shapes(part.name, part.places, expected)
    if part.tied and not any(name in part.places for name in part.tied):
        raise ModelError(
            f"{part.name} lacks the tensor {part.tied[0]}:", "it must contain this tensor", "use a complete checkpoint"
        )
    return expected


def load_flat(part: Part, described: Mapping[str, Shaped], progress: LoadProgress) -> dict[str, jax.Array]:
    """Load a network's weights by name, with the shardings and dtypes of `described`. Raises: ModelError."""
    expected = check_flat(part, described)

    def read_to_devices(name: str, place: TensorPlace) -> jax.Array:
        return jax.block_until_ready(copy_to_devices(read_tensor(place), described[name]))

    weights = dict(part.read(expected, read_to_devices, progress))
    tied = [weights[name] for name in part.tied if name in weights]
    return weights | {name: tied[0] for name in part.tied if name in described}


def check_stacked(part: Part, described: StackedWeights) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that `load_stacked` reads. Raises: ModelError for a missing tensor or another shape."""
    expected = checkpoint_shapes(described)
    check_shapes(part.name, part.places, expected)
    return expected


def load_stacked(part: Part, described: StackedWeights, adjust: Adjust, progress: LoadProgress) -> StackedWeights:
    """Load a network's weights with stacked layers. `adjust(name, tensor)` changes each tensor first. Raises: ModelError."""
    expected = check_stacked(part, described)
    stacks = {
        prefix: {name: create_empty_stack(leaf) for name, leaf in stack.items()} for prefix, stack in described.stacks.items()
    }
    weights = StackedWeights(outer={}, stacks=stacks)
    write_stacked(part, described, weights, expected, adjust, progress)
    return weights


def write_stacked(
    part: Part, described: StackedWeights, weights: StackedWeights, names: Collection[str], adjust: Adjust, progress: LoadProgress
) -> None:
    """Read these tensors into `weights`, whose dictionaries are changed in place. So are arrays of CPU devices, which no program
    may be reading."""

    memory = _Memory()

    def work(name: str, place: TensorPlace) -> dict[str, jax.Array]:
        """Read a tensor, and return its arrays on the devices by name, except arrays that were written in place."""
        prefix, layer, inner = split_name(name, described.stacks)
        if prefix is None:
            leaf = described.outer[name]
            tensor = read_tensor(place).reshape(leaf.shape)  # a file may store a convolution's kernel as a matrix
            return jax.block_until_ready({name: copy_to_devices(adjust(name, tensor), leaf)})
        stack = described.stacks[prefix]
        if not is_host(stack[inner]):
            tensor = read_tensor(place).reshape(describe_layer(stack[inner]).shape)
            tensors = stored_tensors(inner, adjust(name, tensor), stack)
            layers = {one: copy_to_devices(tensor, describe_layer(stack[one])) for one, tensor in tensors.items()}
            return jax.block_until_ready(layers)
        tensor = read_tensor(place, memory.reserve(place.num_bytes))
        for one, stored in stored_tensors(inner, adjust(name, tensor), stack).items():
            write_in_place(weights.stacks[prefix][one], stored, layer)
        return {}

    for name, arrays in part.read(names, work, progress):
        prefix, layer, _ = split_name(name, described.stacks)
        if prefix is None:
            weights.outer.update(arrays)
        else:
            stack = weights.stacks[prefix]
            stack.update({one: write_by_program(stack[one], value, layer) for one, value in arrays.items()})


def checkpoint_shapes(described: StackedWeights) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors that the network reads, by name. Names and shapes are as in a checkpoint."""
    shapes = {name: tuple(leaf.shape) for name, leaf in described.outer.items()}
    for prefix, stack in described.stacks.items():
        for inner, leaf in stack.items():
            is_scale = inner.endswith(SCALE_SUFFIX) and inner.removesuffix(SCALE_SUFFIX) in stack
            for layer in range(0 if is_scale else leaf.shape[0]):
                shapes[f"{prefix}{layer}.{inner}"] = tuple(describe_layer(leaf).shape)
    return shapes


def stored_tensors(name: str, tensor: torch.Tensor, stack: Mapping[str, Shaped]) -> dict[str, torch.Tensor]:
    """Return what a layer stores for a checkpoint's tensor: the tensor itself, or a quantized matrix and its scale."""
    scale_name = f"{name}{SCALE_SUFFIX}"
    if scale_name not in stack:
        return {name: tensor}
    matrix, scale = quantize_matrix(tensor, stack[name].dtype)
    return {name: matrix, scale_name: scale}


def quantize_matrix(matrix: torch.Tensor, dtype: jnp.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix [out, in] to `dtype`, rounded to the nearest, halves to even. Also return the scale [out] float32 of each
    row."""
    largest = LARGEST[dtype]
    peak = matrix.abs().amax(1).float().clamp_min(SMALLEST_PEAK)
    factor = torch.full_like(peak, largest).div(peak)[:, None]  # `largest / peak` would round the reciprocal first
    quantized = torch.empty(matrix.shape, dtype=_QUANTIZED_DTYPES[dtype])
    for start in range(0, len(matrix), QUANTIZED_ROWS):
        rows = slice(start, start + QUANTIZED_ROWS)
        scaled = (matrix[rows].float() * factor[rows]).clamp(-largest, largest)
        quantized[rows] = (scaled.round() if dtype == jnp.int8 else scaled).to(quantized.dtype)
    return quantized, peak / largest
