"""Run a module in a separate process, in which the environment variables for libtpu are set before jax is imported.

The module writes JSON lines to standard output: messages such as {"progress": TEXT} while it works, and {"report": OBJECT} last.
This file imports neither jax nor torch.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.child_process import start_module
from backend.chips import CHIPS, TOPOLOGIES
from backend.errors import RequestError, StudioError
from backend.schemas.worker import AXES
from backend.settings import PROJECT_FOLDER, compiler_environment, tpu_compiler_environment


def check_topology(topology: str) -> None:
    """Check that the topology has a known chip. Raises: RequestError."""
    if topology.partition(":")[0] not in CHIPS or ":" not in topology:
        raise RequestError(
            f"topology={topology!r}", f"must be a chip and a shape, such as {', '.join(TOPOLOGIES)}", "chips: " + ", ".join(CHIPS)
        )


def option_words(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return the options in `names` and the mesh options as words for the command line of a module. Leave out unset options."""
    given = [(name.replace("_", "-"), getattr(arguments, name)) for name in (*names, *AXES)]
    return [word for name, value in given if value is not None for word in (f"--{name}", str(value))]


def compile_in_process(module: str, words: Sequence[str], *, for_tpu: bool) -> dict[str, Any]:
    """Run the module and return its report. Progress is printed to standard error.

    Raises: StudioError if the module ends without a report.
    """
    if for_tpu and importlib.util.find_spec("libtpu") is None:
        raise StudioError(
            "The TPU compiler is not installed",
            "only compiling for a slice on another machine needs it",
            "pip install libtpu==0.0.51",
        )
    environment = tpu_compiler_environment() if for_tpu else compiler_environment()

    def print_progress(message: dict[str, Any]) -> None:
        if "progress" in message:
            sys.stderr.write(message["progress"] + "\n")

    ended = run_in_process(module, words, environment, print_progress)
    if ended.report is None:
        raise StudioError("The compiler stopped", ended.last_error, "check the topology and the mesh, or report this as a bug")
    return ended.report


@dataclass(frozen=True, kw_only=True)
class EndedProcess:
    """The result of a module's process: its report (or None), its exit code, and its standard error.

    `was_silent` is true if the process was killed because it sent no message for too long.
    """

    report: dict[str, Any] | None
    code: int
    errors: str
    was_silent: bool = False

    @property
    def last_error(self) -> str:
        """The last line of standard error."""
        return (self.errors.strip().splitlines() or ["no error message"])[-1][:400]


def run_in_process(
    module: str,
    words: Sequence[str],
    environment: dict[str, str],
    on_message: Callable[[dict[str, object]], None],
    silent_seconds: float | None = None,
) -> EndedProcess:
    """Run the module to its end, and pass each message to `on_message`.

    The process is killed if it sends no message for `silent_seconds`. The value None sets no limit.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = start_module(module, words, environment, cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, stderr=errors, text=True)
        report, was_silent = _read_messages(process, on_message, silent_seconds)
        errors.seek(0)
        return EndedProcess(report=report, code=process.returncode, errors=errors.read(), was_silent=was_silent)


def _read_messages(
    process: subprocess.Popen, on_message: Callable[[dict[str, object]], None], silent_seconds: float | None
) -> tuple[dict[str, object] | None, bool]:
    """Read messages until the process ends. Return the report, and whether the process was killed because it sent no message."""
    report, was_silent, last = None, threading.Event(), [time.monotonic()]

    def watch(silent_seconds: float) -> None:
        while process.poll() is None:
            if time.monotonic() - last[0] > silent_seconds:
                was_silent.set()
                process.kill()
                return
            time.sleep(min(1.0, silent_seconds / 4))

    if silent_seconds is not None:
        threading.Thread(target=watch, args=(silent_seconds,), name="watch", daemon=True).start()
    assert process.stdout is not None, "it was started with a pipe"
    with process:
        for line in process.stdout:
            last[0], message = time.monotonic(), json.loads(line)
            report = message.get("report", report)
            on_message(message)
    return report, was_silent.is_set()


def write_message(message: dict[str, object]) -> None:
    """Write one JSON line to standard output immediately. Only the modules in separate processes call this."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
