"""Refusals of a compiler lead to fallbacks. The tests use the CPU's real compiler, and the TPU's compiler, which needs no TPU."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backend.runtime.context import RuntimeContext
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import Program
from backend.settings import PROJECT_FOLDER, tpu_compiler_environment
from tests.many_devices import without_quick


def one_device(runtime: RuntimeContext) -> Layout:
    return Layout.create(MeshPlan(), jax.devices()[:1], runtime=runtime)


@pytest.mark.parametrize("option", [("xla_no_such_option", "1"), ("xla_cpu_enable_fast_math", "perhaps")])
def test_an_option_that_the_compiler_does_not_take_is_left_out_and_said_once(monkeypatch, option):
    runtime = RuntimeContext()
    monkeypatch.setattr(Layout, "compiler_options", dict([option, ("xla_backend_optimization_level", "1")]))
    for number in (2, 3):
        doubling = Program("doubling", lambda array, number=number: array * number, one_device(runtime))
        assert np.array_equal(doubling(jnp.arange(4.0)), np.arange(4.0) * number)
    [sentence] = runtime.fallbacks.sentences()
    assert option[0] in sentence and "xla_backend_optimization_level" not in runtime.fallbacks


OTHERS = (
    "INTERNAL: the moon is full",
    "RESOURCE_EXHAUSTED: no room; see xla_tpu_scoped_vmem_limit_kib",
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 40.1G of 31.25G hbm. Largest program allocations in hbm: "
    'custom_call_target="tpu_custom_call" op_name="jit(run)/attention_online/pallas_call"',
)


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_of_the_compiler_are_raised(monkeypatch, text):
    runtime = RuntimeContext()

    def fails(*_, **__):
        raise jax.errors.JaxRuntimeError(text)

    monkeypatch.setattr(jax.stages.Lowered, "compile", fails)
    monkeypatch.setattr(Layout, "compiler_options", {"xla_tpu_scoped_vmem_limit_kib": "1"})
    with pytest.raises(jax.errors.JaxRuntimeError, match=text[:30]):
        Program("doubling", lambda array: array * 2, one_device(runtime))(jnp.arange(4.0))
    assert runtime.fallbacks.sentences() == ()


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    ("what", "left", "words"),
    [
        ("option", ["attention", "passes"], "xla_tpu_has_no_such_option"),
        ("attention", [], "The attention kernel cannot be compiled here"),
        pytest.param("passes", ["attention"], "The kernels around the attention cannot be compiled here", marks=pytest.mark.slow),
    ],
)
def test_what_the_tpu_compiler_refuses_is_done_without(what, left, words):
    pytest.importorskip("libtpu")
    done = subprocess.run(
        [sys.executable, "-m", "tests.backend.runtime.kernel_fallback_run", what],
        cwd=PROJECT_FOLDER,
        env=tpu_compiler_environment(without_quick()),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kernels"] == left
    assert len(told["sentences"]) == 1 and words in told["sentences"][0]
    assert bool(told["refused"]) == (what != "option")
