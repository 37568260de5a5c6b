"""A compile option that a compiler refuses by its name is left out, and no other error is hidden."""

import logging

import jax
import jax.numpy as jnp
import pytest

from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import Program

TAKEN = {"xla_cpu_enable_fast_math": False}


def doubling(options, monkeypatch) -> Program:
    monkeypatch.setattr(Layout, "compiler_options", property(lambda layout: options))
    return Program("doubling", lambda array: 2 * array, Layout.over(MeshPlan(), jax.devices()[:1]))


@pytest.mark.parametrize("options", [{"xla_no_such": "1"}, TAKEN | {"xla_no_such": "1", "xla_nor_such": "2"}])
def test_it_runs_without_the_options_that_are_refused(options, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING):
        assert float(doubling(options, monkeypatch)(jnp.float32(2))) == 4
    said = [record.message for record in caplog.records]
    assert len(said) == len(options.keys() - TAKEN.keys())
    assert said[0].startswith("doubling is compiled without xla_no_such: INVALID_ARGUMENT: No such compile option")


def test_options_that_are_taken_are_not_spoken_of(monkeypatch, caplog):
    doubling(TAKEN, monkeypatch)(jnp.float32(2))
    assert not caplog.records


def test_another_error_of_the_compiler_stays(monkeypatch):
    class Lowered:
        def compile(self, compiler_options):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room; see xla_tpu_scoped_vmem_limit_kib")

    from backend.runtime.program import compile_now

    program = doubling({"xla_tpu_scoped_vmem_limit_kib": "1"}, monkeypatch)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        compile_now(program, Lowered())
