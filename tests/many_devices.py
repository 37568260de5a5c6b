"""The environment of a process that plays several devices on the CPU."""

import os

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Programs that run once are compiled in a quarter less time so; the results differ by rounding only."""


def environment(num_devices: int) -> dict[str, str]:
    """For `subprocess.run`."""
    flags = f"--xla_force_host_platform_device_count={num_devices} {QUICK}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
