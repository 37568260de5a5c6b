"""Check one real step: timed on a CPU, predicted by the TPU's compiler, and refused if the chip's memory is too small."""

import importlib.util
import re
import subprocess
import sys

import pytest

from backend.selftest.one_step import check_step
from backend.settings import PROJECT_FOLDER, tpu_compiler_environment
from presets import load_preset
from tests.many_devices import without_quick


@pytest.mark.demo_model
def test_a_step_is_timed_on_a_cpu():
    memory, step = check_step(load_preset("wan-tiny"), 2**34, pytest.fail)
    assert (memory.state, step.state) == ("ok", "ok")
    assert float(re.search(r"measured ([\d.e-]+) s", step.found)[1]) > 0 and "nothing is predicted" in step.found


@pytest.mark.tpu_compiler
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_chips_compiler_predicts_the_step_and_says_when_it_needs_more_than_the_chip_has():
    words = [sys.executable, "-m", "tests.backend.selftest.one_step_run"]
    done = subprocess.run(
        words, cwd=PROJECT_FOLDER, env=tpu_compiler_environment(without_quick()), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled, short = done.stdout.strip().splitlines()
    assert 0 < float(compiled.split()[0]) < 0.01  # the compiler accepted the step of 96 x 96 x 17
    assert "fault" in compiled and "needs" not in compiled  # no chip can run it, and the report states this
    assert re.search(r"fault +one step: one step needs \d+\.\d GiB on each device, which has 0", short) and "check-tpu" in short
