"""How the tests compile for the CPU, and the environment of a process that plays several devices on it."""

import os

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
"""XLA_FLAGS with which programs that run once are compiled in half the time; the results differ by rounding only."""


def environment(num_devices: int) -> dict[str, str]:
    """For `subprocess.run`."""
    flags = f"--xla_force_host_platform_device_count={num_devices} {QUICK}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def without_quick() -> dict[str, str]:
    """The environment for a process that compiles for TPUs, or that must be as fast as it is for users: with none of the tests' flags."""
    return {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OMP_NUM_THREADS")}
