"""Check the kernels that `doctor` runs on an accelerator, here in the interpreter. Every kernel passes, and a wrong result or
an error is a fault.
"""

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from backend.schemas.check import worst_state
from backend.selftest.kernels import REPORT, Outcome, compile_option_checks, kernel_checks, run_checks
from kernels import causal_conv as conv_module

FAST_MATH = {"xla_cpu_enable_fast_math": False, "xla_cpu_enable_fast_min_max": True}


KERNELS = (
    "attention, constant maximum",
    "attention, online",
    "attention, loud heads",
    "attention, a window",
    "attention, a bias a key",
    "attention, keys that are counted",
    "block-sparse attention, constant maximum",
    "block-sparse attention, loud heads",
    "block-sparse attention, short blocks",
    "means of blocks",
    "lists of the largest scores",
    "linear attention",
    "norm, rotation and head groups",
    "norm of each head",
    "rotation by each head's own angles",
    "head groups joined",
    "layer norm of tokens",
    "RMS norm of tokens",
    "8-bit tokens",
    "convolution",
    "convolution of a doubled picture",
)


def test_the_kernels_below_are_all_that_doctor_tries():
    assert tuple(kernel_checks("tpu")) == KERNELS


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_for_tpus_passes(name):
    with pltpu.force_tpu_interpret_mode():
        [check] = run_checks({name: kernel_checks("tpu")[name]}, "kernel")
    assert check.state == "ok", check
    assert check.name == f"kernel {name}" and "differs from the reference by" in check.found


def test_a_cpu_tries_the_attention_that_it_chooses():
    checks = list(run_checks(kernel_checks("cpu"), "kernel"))
    assert [check.state for check in checks] == ["ok"]


def test_a_gpu_that_has_no_cudnn_is_a_fault_with_the_reason_and_the_next_trial_runs():
    checks = list(run_checks(kernel_checks("gpu"), "kernel"))
    assert [check.state for check in checks] == ["ok", "fault"]
    assert "cuDNN" in checks[1].found and "bug report" in checks[1].fix


def test_a_kernel_that_computes_something_else_is_a_fault(monkeypatch):
    right = conv_module._weight_for_doubled_rows
    monkeypatch.setattr(conv_module, "_weight_for_doubled_rows", lambda weight: right(weight)[..., ::-1])
    with pltpu.force_tpu_interpret_mode():
        [check] = run_checks({"it": kernel_checks("tpu")["convolution of a doubled picture"]}, "kernel")
    assert check.state == "fault" and check.fix == REPORT


@pytest.mark.parametrize(("difference", "state"), [(0.1, "ok"), (0.11, "fault"), (float("nan"), "fault")])
def test_the_difference_must_be_within_what_is_allowed(difference, state):
    [check] = run_checks({"it": lambda: Outcome(difference, 0.1)}, "kernel")
    assert check.state == state == worst_state([check])


def test_each_option_is_tried_alone_and_with_the_others():
    tried = compile_option_checks(FAST_MATH, jax.devices())
    assert list(tried) == [*FAST_MATH, "all together"]
    assert [check.state for check in run_checks(tried, "option")] == ["ok"] * 3


def test_an_option_that_the_compiler_refuses_is_named():
    checks = list(run_checks(compile_option_checks({"xla_no_such": "1"} | FAST_MATH, jax.devices()), "option"))
    assert [check.state for check in checks] == ["fault", "ok", "ok", "fault"]
    assert "No such compile option: 'xla_no_such'" in checks[0].found
