"""Run the checks of `doctor` that need jax, in a separate process of `app.py doctor`.

Writes JSON lines: {"progress": TEXT} before each check, so that a crash shows which check ran, {"devices": LIST} or
{"refusal": TEXT}, {"check": OBJECT} for each finding, and {"report": {}} last.
"""

import argparse
import dataclasses
from collections.abc import Iterable

import jax

from backend.child_process import write_message
from backend.errors import one_line
from backend.imports import hide_unused_libraries
from backend.schemas.check import Check
from backend.schemas.settings import find_preset


def main() -> None:
    """List the devices. Without --quick, try each kernel and compile option once, then run one denoising step of the preset."""
    hide_unused_libraries()
    parser = argparse.ArgumentParser(
        prog="backend.cli.doctor_run", description="`app.py doctor` starts this module. Do not start it by hand."
    )
    parser.add_argument("--preset", required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    write_message({"progress": "listing jax's devices"})
    from backend.runtime.devices import device_facts

    try:
        devices = device_facts()
    except Exception as error:  # runtimes raise errors of many types; the command explains them
        write_message({"refusal": one_line(str(error))})
        write_message({"report": {}})
        return
    write_message({"devices": [dataclasses.asdict(device) for device in devices]})
    if not arguments.quick:
        _try_kernels_and_step(arguments.preset, devices[0].bytes_limit)
    write_message({"report": {}})


def _try_kernels_and_step(preset: str, memory: int | None) -> None:
    from backend.runtime.mesh import Layout, MeshPlan
    from backend.selftest.kernels import compile_option_checks, kernel_checks, run_checks

    devices = jax.devices()
    layout = Layout.create(MeshPlan(sp=len(devices)), devices)
    write_message({"progress": "trying each kernel"})
    _write_checks(run_checks(kernel_checks(layout.platform), "kernel"))
    write_message({"progress": "trying each compile option"})
    _write_checks(run_checks(compile_option_checks(layout.compiler_options, devices), "option"))
    write_message({"progress": f"one step of {preset}"})
    from backend.selftest.one_step import check_step

    try:
        _write_checks(check_step(find_preset(preset), memory, lambda text: write_message({"progress": text})))
    except Exception as error:  # an unreadable checkpoint is a finding; the other checks must still run
        _write_checks([Check(name="one step", state="fault", found=one_line(f"{type(error).__name__}: {error}")[:400])])


def _write_checks(checks: Iterable[Check]) -> None:
    for check in checks:
        write_message({"check": dataclasses.asdict(check)})


if __name__ == "__main__":
    main()
