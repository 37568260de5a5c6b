"""Copy tensors of the host into arrays on the devices. Arrays of CPU devices are written in place. On other devices, a program
writes each tensor into the array. Matrices of a checkpoint are [out, in], stacked [layers, in, out]
(`backend/weights/stacked.py`).
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

OWN_PAGES = 1 << 20  # bytes (1 MiB): an allocation of at least this size gets its own pages of memory
BLOCK_COLUMNS = 64  # columns that are copied at a time: 64 bfloat16 values are two cache lines; 32 and 128 are slower
_TORCH_DTYPES = {
    "bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn,
}  # fmt: skip
_BITS = {1: torch.int8, 2: torch.int16}  # torch's integer dtypes, by their size in bytes


def allocate_host_memory(count: int) -> np.ndarray:
    """Return `count` bytes of zeros. An array of `OWN_PAGES` bytes or more starts at a page of memory, so that a CPU device can
    use it without a copy. The pages are large if Linux has large pages.

    Reading a file into 28 MB of such memory ran at 5.9 GB/s, into fresh small pages at 1.4 GB/s (measured on one core of a Xeon).
    """
    if count < OWN_PAGES:
        return np.zeros(count, np.uint8)
    pages = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no large pages
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def create_empty_stack(leaf: Shaped) -> jax.Array:
    if not is_host(leaf):
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
    shape = leaf.sharding.shard_shape(leaf.shape)
    count = math.prod(shape) * leaf.dtype.itemsize
    shards = [
        jax.device_put(allocate_host_memory(count).view(leaf.dtype).reshape(shape), device)
        for device in leaf.sharding.addressable_devices
    ]
    # JAX copies small arrays in the background. An unfinished copy would overwrite the values that are written next.
    jax.block_until_ready(shards)
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)


def is_host(leaf: Shaped) -> bool:
    """Return whether the array's devices use the process's memory."""
    return next(iter(leaf.sharding.device_set)).platform == "cpu"


def copy_to_devices(tensor: torch.Tensor, leaf: Shaped) -> jax.Array:
    """Copy the tensor to the devices, with the dtype and sharding of `leaf`. A CPU device may use the tensor's memory, which must
    not be written later.
    """
    values = tensor.to(_TORCH_DTYPES[leaf.dtype.name]).contiguous()
    if leaf.dtype != jnp.float32:  # torch cannot convert bfloat16 and float8 to numpy, so their bits are passed as integers
        return put(values.view(_BITS[leaf.dtype.itemsize]).numpy().view(leaf.dtype), leaf.sharding)
    return put(values.numpy(), leaf.sharding)


def describe_layer(leaf: Shaped) -> jax.ShapeDtypeStruct:
    """Describe one layer of a stacked array in the checkpoint's shape: matrices [out, in]."""
    assert isinstance(leaf.sharding, NamedSharding), "weights are on the layout's mesh"
    _, *axes = (*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec)))
    shape = leaf.shape[1:]
    if len(shape) == 2:
        shape, axes = shape[::-1], axes[::-1]
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(leaf.sharding.mesh, P(*axes)))


def write_in_place(stack: jax.Array, tensor: torch.Tensor, layer: int) -> None:
    """Write one layer, in the checkpoint's shape, into a stack on CPU devices. The caller must make sure that no program reads
    the stack. Several threads may write different layers."""
    for shard in stack.addressable_shards:
        memory = (ctypes.c_byte * shard.data.nbytes).from_address(shard.data.unsafe_buffer_pointer())
        whole = torch.frombuffer(memory, dtype=_TORCH_DTYPES[str(shard.data.dtype)]).reshape(shard.data.shape)
        target, source = whole[layer], (tensor.T if tensor.ndim == 2 else tensor)[shard.index[1:]]
        if source.ndim != 2 or source.is_contiguous():
            target.copy_(source)
            continue
        source = source.to(target.dtype)
        if source.dtype != torch.float32:  # copy the bits as integers, without conversion
            source, target = (array.view(_BITS[source.dtype.itemsize]) for array in (source, target))
        # One core copies a transposed matrix at 2 GB/s in blocks of columns that fit into the cache, else at 0.85 GB/s.
        for start in range(0, source.shape[1], BLOCK_COLUMNS):
            columns = slice(start, start + BLOCK_COLUMNS)
            target[:, columns].copy_(source[:, columns])


def write_by_program(stack: jax.Array, value: jax.Array, layer: int) -> jax.Array:
    """Write one layer, in the checkpoint's shape, into the stack on the devices. `stack` cannot be used afterwards."""
    return _create_writer(stack.sharding)(stack, value, layer)


@functools.cache
def _create_writer(sharding: NamedSharding) -> Callable:
    def write(stack: jax.Array, value: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stack, value.T if value.ndim == 2 else value, layer, 0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)
