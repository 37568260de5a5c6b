"""A program that is compiled ahead of time."""

import jax
import jax.numpy as jnp

from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import Program


def test_a_function_is_traced_once_to_be_described_compiled_and_run():
    traced = []

    def double(array: jax.Array) -> jax.Array:
        traced.append(array.shape)
        return 2 * array

    program = Program("doubling", double, Layout.create(MeshPlan(), jax.devices()[:1]))
    assert program.describe(jax.ShapeDtypeStruct((3,), jnp.float32)).shape == (3,)
    program.prepare(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert program(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert traced == [(3,)]
    program(jnp.ones(4))
    assert traced == [(3,), (4,)]
