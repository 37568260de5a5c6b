"""Check PyTorch's functions inside compiled programs: results, errors, and that the cache still finds the program."""

import functools
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from backend.runtime.torch_call import TorchCall


def scale_and_add(result: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    torch.add(first, second, alpha=2.0, out=result)


def fail(result: torch.Tensor, operand: torch.Tensor) -> None:
    raise ValueError(f"no luck with {tuple(operand.shape)}")


@functools.cache
def call_of(function: Callable[..., None]) -> TorchCall:
    return TorchCall(f"test_{function.__name__}", function)


def described(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@pytest.mark.parametrize("shape", [(3,), (2, 5, 7), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_function_reads_the_operands_and_fills_the_result(shape, dtype):
    first, second = jnp.full(shape, 1.5, dtype), jnp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    result = jax.jit(lambda first, second: call_of(scale_and_add)(described(first), first, second))(first, second)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, first + 2 * second)


def test_a_call_runs_in_every_turn_of_a_loop_and_on_views_that_xla_lays_out_first():
    matrix = jnp.arange(12.0).reshape(3, 4)

    @jax.jit
    def run(matrix):
        def turn(total, _):
            return call_of(scale_and_add)(described(total), total, matrix.T[:, ::-1]), None

        return jax.lax.scan(turn, jnp.zeros((4, 3)), None, length=5)[0]

    np.testing.assert_array_equal(run(matrix), 10 * matrix.T[:, ::-1])


def test_a_batch_calls_it_one_by_one():
    batch = jnp.arange(6.0).reshape(3, 2)
    result = jax.vmap(lambda row: call_of(scale_and_add)(described(row), row, row))(batch)
    np.testing.assert_array_equal(result, 3 * batch)


def test_what_the_function_raises_is_told_and_the_next_call_works():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"test_fail: ValueError: no luck with \(2, 3\)"):
        jax.jit(lambda operand: call_of(fail)(described(operand), operand))(jnp.zeros((2, 3))).block_until_ready()
    np.testing.assert_array_equal(
        call_of(scale_and_add)(jax.ShapeDtypeStruct((2,), "float32"), jnp.ones(2), jnp.ones(2)), 3 * np.ones(2)
    )


PROGRAM = """
import sys
import jax, jax.numpy as jnp
from backend.runtime.cpu_attention import attention
from kernels.attention import AttentionOptions

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
arrays = [jnp.full((1, 64, 2, 128), value) for value in (0.1, 0.2, 0.3)]
hits.clear()
program = jax.jit(lambda *arrays: attention(*arrays, options=AttentionOptions(implementation="torch_cpu"))).lower(*arrays).compile()
print(len(hits), float(program(*arrays).mean()))
"""


def test_another_process_finds_the_program_in_the_cache(tmp_path):
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ".", "PATH": ""}
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    (first_hits, first), (second_hits, second) = (run.stdout.split() for run in runs)
    assert (first_hits, second_hits) == ("0", "1")
    assert float(first) == float(second) == pytest.approx(0.3, rel=1e-6)
