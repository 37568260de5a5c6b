"""The tests' compile options for the CPU, and the environment of a process that simulates several devices on it."""

import json
import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from backend.settings import PROJECT_FOLDER
from tests import kept


def quick_flags(jaxlib_version: str) -> str:
    """Return XLA's flags for quick compilation.

    A flag that XLA does not know ends the process without a message in pytest's output.
    """
    flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    if tuple(int(number) for number in jaxlib_version.split(".")[:3]) < (0, 11, 1):  # 0.11.1 removed this flag
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return " ".join([*flags, "--xla_cpu_parallel_codegen_split_count=1"])


QUICK = quick_flags(metadata.version("jaxlib"))
"""XLA_FLAGS with which programs that run once are compiled in half the time; the results differ by rounding only."""


LEAST_SECONDS = 0.1
"""A program that is compiled in less is not worth a file (`tests/kept.py`)."""


def environment(num_devices: int) -> dict[str, str]:
    """Return the environment of a process with `num_devices` devices. It shares the tests' cache of compiled programs."""
    flags = f"--xla_force_host_platform_device_count={num_devices} {QUICK}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"} | kept_programs()


def kept_programs() -> dict[str, str]:
    """Return environment variables that make JAX keep compiled programs for later runs of the tests."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(kept.folder() / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(LEAST_SECONDS),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def told_by(module: str, *words: str, devices: int = 8) -> Any:
    """Run a module of the tests in a process with `devices` simulated devices, and return the JSON of its last line."""
    command = [sys.executable, "-W", "ignore", "-m", module, *words]
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=environment(devices), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def asked(request: pytest.FixtureRequest, parameter: str) -> list[str]:
    """Return the values of `parameter` in the selected tests of the file that use the fixture."""
    items = (item for item in request.session.items if item.path == request.path and request.fixturename in item.fixturenames)
    return list(dict.fromkeys(item.callspec.params[parameter] for item in items))


def without_quick() -> dict[str, str]:
    """Return the environment without the tests' flags, for processes that compile for TPUs or must be as fast as for users."""
    return {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", "OMP_NUM_THREADS", *kept_programs()}}
