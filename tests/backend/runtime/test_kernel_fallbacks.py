"""Refusals of a compiler lead to fallbacks. The tests use the CPU's real compiler, and the TPU's compiler, which needs no TPU."""

import ast
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backend.runtime import kernel_fallbacks as fallbacks_module
from backend.runtime.context import RuntimeContext
from backend.runtime.kernel_fallbacks import KERNELS, KernelFallbacks, find_kernel_uses
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


def kernel_names() -> set[str]:
    """Return the names of the Pallas kernels in the package `kernels`. A name that ends with a variable is its constant start."""
    found = set()
    for path in sorted((PROJECT_FOLDER / "kernels").rglob("*.py")):
        text = path.read_text()
        if "pallas_call(" in text:
            found |= {name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) for name in names_given(node)}
    return found


def names_given(call: ast.Call) -> list[str]:
    """Return the texts that may be the argument `name` of this call, or the name for `qkv._make_pass`."""
    given = [word.value for word in call.keywords if word.arg == "name"]
    if isinstance(call.func, ast.Name) and call.func.id == "_make_pass":
        given.append(call.args[1])
    given = [choice for one in given for choice in ((one.body, one.orelse) if isinstance(one, ast.IfExp) else (one,))]
    given = [one.values[0] if isinstance(one, ast.JoinedStr) else one for one in given]
    return [one.value for one in given if isinstance(one, ast.Constant)]


def test_every_kernel_has_a_use():
    names = kernel_names()
    assert {name for name in names if not name.startswith(tuple(KERNELS))} == set()
    assert {start for start in KERNELS if not any(name.startswith(start) for name in names)} == set()


@pytest.mark.parametrize("name", ["block_sparse_looped_online", "largest_scores", "layer_norm"])
def test_a_refused_kernel_is_withdrawn_together_with_the_passes(monkeypatch, name):
    fallbacks, disabled = KernelFallbacks(), []
    monkeypatch.setattr(fallbacks_module, "disable_implementation", disabled.append)
    assert fallbacks.refuse_kernel(RuntimeError(f"INTERNAL: Mosaic failed to compile TPU kernel: {name}")) is not None
    assert "passes" in fallbacks
    assert disabled == (["pallas_tpu"] if name.startswith("block_sparse") else [])


def test_a_message_that_also_names_a_withdrawn_kernel_refuses_the_other_kernel(monkeypatch):
    fallbacks = KernelFallbacks()
    monkeypatch.setattr(fallbacks_module, "disable_implementation", lambda name: None)
    for _ in range(2):  # first the passes, then the convolution
        assert fallbacks.refuse_kernel(RuntimeError("INTERNAL: Mosaic failed in rms_norm, causal_conv")) is not None
    assert "passes" in fallbacks and "convolution" in fallbacks


def test_a_program_uses_kernels_and_not_functions_of_the_same_name():
    text = (
        'func.func private @layer_norm(...)\nstablehlo.custom_call @tpu_custom_call(...) {kernel_name = "block_sparse_constant"}'
    )
    assert find_kernel_uses(text) == {"attention"}


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    ("what", "left", "words"),
    [
        ("option", ["attention", "passes"], "xla_tpu_has_no_such_option"),
        ("attention", [], "The attention kernel cannot be compiled here"),
        pytest.param("passes", ["attention"], "The kernels around the attention cannot be compiled here", marks=pytest.mark.slow),
        ("sparse", [], "The attention kernel cannot be compiled here"),
        pytest.param(
            "selection", ["attention"], "The kernels around the attention cannot be compiled here", marks=pytest.mark.slow
        ),
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
