"""Host tensors of any shape and dtype get into device arrays with the right values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from backend.weights.place import (
    OWN_PAGES,
    allocate_host_memory,
    copy_to_devices,
    create_empty_stack,
    describe_layer,
    is_host,
    write_by_program,
    write_in_place,
)


@functools.cache
def on_one_device() -> NamedSharding:
    return NamedSharding(jax.make_mesh((1,), ("sp",), devices=jax.devices()[:1]), P())


def described(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=on_one_device())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5), (65, 700), (700, 65), (128, 1001), (1, 64), (7,), (2, 3, 4)])
def test_a_layer_is_written_where_it_belongs_and_nowhere_else(shape, dtype):
    leaf = described((3, *(shape[::-1] if len(shape) == 2 else shape)), dtype)
    tensor = torch.randn(shape)
    stack = create_empty_stack(leaf)
    write_in_place(stack, tensor, 1)
    by_program = write_by_program(
        jnp.zeros(leaf.shape, leaf.dtype, device=on_one_device()), copy_to_devices(tensor, describe_layer(leaf)), 1
    )
    np.testing.assert_array_equal(np.asarray(stack), np.asarray(by_program))
    assert stack.shape == leaf.shape and stack.sharding == leaf.sharding and not np.asarray(stack[0]).any()
    expected = tensor.T if len(shape) == 2 else tensor
    np.testing.assert_array_equal(np.asarray(stack[1], np.float32), expected.to(getattr(torch, dtype)).float().numpy())


def test_a_program_that_runs_after_a_change_sees_it():
    stack = create_empty_stack(described((2, 64, 64), "float32"))
    total = jax.jit(jnp.sum)
    for value in (1.0, 2.0):
        write_in_place(stack, torch.full((64, 64), value), 0)
        assert float(total(stack)) == 64 * 64 * value


@pytest.mark.parametrize(("own_pages", "more"), [(0, 0), (0, 1), (1, -1), (1, 0), (1, 5)])
def test_memory_is_as_long_as_it_was_asked_for_and_can_be_written(own_pages, more):
    count = own_pages * OWN_PAGES + more
    memory = allocate_host_memory(count)
    memory[:] = 7
    assert memory.nbytes == count and memory.dtype == np.uint8


def test_a_cpus_memory_is_the_processs():
    assert is_host(described((1,), "float32"))
