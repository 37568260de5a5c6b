"""Run modules that import jax in separate processes, in which libtpu's environment variables are set before the import.

A module writes JSON lines to standard output: messages such as {"progress": TEXT} while it works, and {"report": OBJECT} last.
"""

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.child_process import start_module
from backend.chips import CHIPS, TOPOLOGIES
from backend.errors import RequestError, StudioError
from backend.schemas.worker import AXES
from backend.settings import PROJECT_FOLDER, module_environment, tpu_compiler_environment

_STOP_SECONDS = 20.0  # more than `backend.cli.stages_run.STOP_SECONDS`, within which the stage ends


def check_topology(topology: str) -> None:
    """Check that the topology has a known chip. Raises: RequestError."""
    if topology.partition(":")[0] not in CHIPS or ":" not in topology:
        rule = f"must be a chip and a shape, such as {', '.join(TOPOLOGIES)}"
        raise RequestError(f"topology={topology!r}", rule, "chips: " + ", ".join(CHIPS))


def option_words(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return the options in `names` and the mesh options as words for the command line of a module, without unset options."""
    given = [(name.replace("_", "-"), getattr(arguments, name)) for name in (*names, *AXES)]
    return [word for name, value in given if value is not None for word in (f"--{name}", str(value))]


def compile_in_process(module: str, words: Sequence[str], *, for_tpu: bool) -> dict[str, Any]:
    """Run the module, print its progress, and return its report. Raises: StudioError if it ends without a report."""
    if for_tpu and importlib.util.find_spec("libtpu") is None:
        rule = "only compiling for a slice on another machine needs it"
        raise StudioError("The TPU compiler is not installed", rule, "pip install libtpu==0.0.51")

    def print_progress(message: dict[str, Any]) -> None:
        if "progress" in message:
            sys.stderr.write(message["progress"] + "\n")

    ended = run_in_process(module, words, tpu_compiler_environment() if for_tpu else None, print_progress)
    if ended.report is None:
        raise StudioError("The compiler stopped", ended.last_error, "check the topology and the mesh, or report this as a bug")
    return ended.report


@dataclass(frozen=True, kw_only=True)
class EndedProcess:
    """The result of a module's process. `was_silent` is true if it was killed because it sent no message for too long."""

    report: dict[str, Any] | None
    code: int
    errors: str
    was_silent: bool = False

    @property
    def last_error(self) -> str:
        return (self.errors.strip().splitlines() or ["no error message"])[-1][:400]


def run_in_process(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str] | None,
    on_message: Callable[[dict[str, object]], None],
    silent_seconds: float | None = None,
) -> EndedProcess:
    """Run the module to its end, and pass each message to `on_message`. Kill it if it is silent for `silent_seconds`."""
    report, was_silent, last = None, threading.Event(), time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = start_module(module, words, environment, cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, stderr=errors, text=True)

        def watch(silent_seconds: float) -> None:
            while process.poll() is None:
                if time.monotonic() - last > silent_seconds:
                    was_silent.set()
                    process.kill()
                    return
                time.sleep(min(1.0, silent_seconds / 4))

        if silent_seconds is not None:
            last = time.monotonic()
            threading.Thread(target=watch, args=(silent_seconds,), name="watch", daemon=True).start()
        assert process.stdout is not None, "it was started with a pipe"
        with process:
            for line in process.stdout:
                last, message = time.monotonic(), json.loads(line)
                report = message.get("report", report)
                on_message(message)
        errors.seek(0)
        return EndedProcess(report=report, code=process.returncode, errors=errors.read(), was_silent=was_silent.is_set())


def run_stage(words: Sequence[str]) -> int:
    """Run `encode`, `denoise`, `decode` or `measure-cache` in a separate process, and return its exit code.

    At the first Ctrl+C, the stage gets SIGTERM, and can write its state. The stage is killed at a second Ctrl+C, or after
    `_STOP_SECONDS`.
    """
    module = "backend.cli.measure_cache_run" if words[0] == "measure-cache" else "backend.cli.stages_run"
    with start_module(module, words, module_environment(), start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            try:
                return process.wait(_STOP_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                process.kill()
                return process.wait() or 1
