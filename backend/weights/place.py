"""Puts tensors of the host into arrays on the devices. The arrays of CPU devices lie in this process's memory, and are written
there; other devices are sent each tensor, and a program of theirs writes it.

Matrices of a stack are kept [layers, in, out], and come as [out, in] (`backend/weights/stacked.py`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from backend.runtime.hosts import put
from backend.runtime.mesh import Shaped

OWN_PAGES = 1 << 20  # bytes from which memory is taken from the system in pages of its own
ROWS = 64  # of a block that is transposed: 64 values are two lines of the cache in bfloat16; faster than 32 and 128
_TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def host_memory(count: int) -> np.ndarray:
    """`count` bytes of zeros, from 1 MB on in large pages where Linux has them, so that a CPU device can use them as they are.

    Taking 28 MB so and reading a file into it ran at 5.9 GB/s, into fresh small pages at 1.4 (measured on one core of a Xeon).
    """
    if count < OWN_PAGES:
        return np.zeros(count, np.uint8)
    pages = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no large pages
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def empty_stack(leaf: Shaped) -> jax.Array:
    """Zeros with the shape, the dtype and the places of `leaf`."""
    if not is_host(leaf):
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
    shape = leaf.sharding.shard_shape(leaf.shape)
    devices = leaf.sharding.addressable_devices
    shards = [jax.device_put(_host_array(shape, leaf.dtype), device) for device in devices]
    jax.block_until_ready(shards)  # small arrays are copied in the background, over what is written meanwhile
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)


def is_host(leaf: Shaped) -> bool:
    """Whether these devices' memory is that of the process."""
    return next(iter(leaf.sharding.device_set)).platform == "cpu"


def on_device(tensor: torch.Tensor, leaf: Shaped) -> jax.Array:
    """The tensor with the dtype and the places of `leaf`, of the same shape. A CPU device may use the tensor's own memory, which
    must not be written afterwards."""
    return put(_as_numpy(tensor, leaf.dtype), leaf.sharding)


def layer_of(leaf: Shaped) -> jax.ShapeDtypeStruct:
    """One layer of a stacked array as the checkpoint has it: matrices [out, in]."""
    assert isinstance(leaf.sharding, NamedSharding), "weights lie on the layout's mesh"
    _, *axes = (*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec)))
    shape = leaf.shape[1:]
    if len(shape) == 2:
        shape, axes = shape[::-1], axes[::-1]
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(leaf.sharding.mesh, P(*axes)))


def write_in_place(stack: jax.Array, tensor: torch.Tensor, layer: int) -> None:
    """Write one layer, shaped as the checkpoint has it, into a stack on CPU devices. No program may be reading the stack.
    Several threads may write different layers.
    """
    source = tensor.T if tensor.ndim == 2 else tensor
    for shard in stack.addressable_shards:
        _copy(_memory_of(shard.data)[layer], source[shard.index[1:]])


def write_by_program(stack: jax.Array, value: jax.Array, layer: int) -> jax.Array:
    """The stack with one layer, shaped as the checkpoint has it, written on the devices; `stack` itself is given up."""
    return _writer(stack.sharding)(stack, value, layer)


@functools.cache
def _writer(sharding: NamedSharding) -> Callable:
    def write(stack: jax.Array, value: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stack, value.T if value.ndim == 2 else value, layer, 0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy with conversion; a transposed matrix in blocks that stay in the cache, 2 GB/s on a core instead of 0.85."""
    if source.ndim != 2 or source.is_contiguous():
        target.copy_(source)
        return
    source = source.to(target.dtype)
    if source.dtype == torch.bfloat16:
        source, target = source.view(torch.int16), target.view(torch.int16)  # the same bits
    for start in range(0, source.shape[1], ROWS):
        columns = slice(start, start + ROWS)
        target[:, columns].copy_(source[:, columns])


def _memory_of(array: jax.Array) -> torch.Tensor:
    """The memory of an array on one CPU device, as a tensor that can be written while the array exists."""
    dtype = _TORCH_DTYPES[str(array.dtype)]
    memory = (ctypes.c_byte * array.nbytes).from_address(array.unsafe_buffer_pointer())
    return torch.frombuffer(memory, dtype=dtype).reshape(array.shape)


def _host_array(shape: tuple[int, ...], dtype: jnp.dtype) -> np.ndarray:
    return host_memory(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def _as_numpy(tensor: torch.Tensor, dtype: jnp.dtype) -> np.ndarray:
    """The tensor's values in this dtype; numpy's own bfloat16 is a view of torch's bits."""
    if dtype == jnp.bfloat16:
        return tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    if dtype == jnp.float32:
        return tensor.to(torch.float32).contiguous().numpy()
    raise AssertionError(f"no model is run in {dtype}")
