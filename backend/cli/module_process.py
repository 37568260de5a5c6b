"""Runs a module that compiles in its own process: libtpu reads its settings before jax is imported.

The module writes JSON lines to standard output, {"progress": TEXT} or others while it works and {"report": OBJECT} last. Imports
neither jax nor torch.
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


def refuse_topology(topology: str) -> None:
    """Raises: RequestError if it names no chip that we know."""
    if topology.partition(":")[0] not in CHIPS or ":" not in topology:
        raise RequestError(
            f"topology={topology!r}", f"must be a chip and a shape, such as {', '.join(TOPOLOGIES)}", "chips: " + ", ".join(CHIPS)
        )


def option_words(arguments: argparse.Namespace, *names: str) -> list[str]:
    """The options of these names, and those of the mesh, that were given, as words for another command line."""
    given = [(name.replace("_", "-"), getattr(arguments, name)) for name in (*names, *AXES)]
    return [word for name, value in given if value is not None for word in (f"--{name}", str(value))]


def compile_in_process(module: str, words: Sequence[str], *, for_tpu: bool) -> dict[str, Any]:
    """The module's report; its progress goes to standard error. Raises: StudioError if it ends without a report."""
    if for_tpu and importlib.util.find_spec("libtpu") is None:
        raise StudioError(
            "The TPU compiler is not installed",
            "compiling for a described slice needs it, the studio does not",
            "pip install libtpu==0.0.51",
        )
    environment = tpu_compiler_environment() if for_tpu else compiler_environment()
    ended = run_in_process(module, words, environment, _print_progress)
    if ended.report is None:
        raise StudioError("The compiler stopped", ended.last_error, "check the topology and the mesh, or report this as a bug")
    return ended.report


@dataclass(frozen=True, kw_only=True)
class EndedProcess:
    """How a module's process ended: its report, None if it sent none; its exit code; all that it wrote as errors. `was_late`: it
    was ended, because it had said nothing for too long."""

    report: dict[str, Any] | None
    code: int
    errors: str
    was_silent: bool = False

    @property
    def last_error(self) -> str:
        """The last line that it wrote as an error."""
        return (self.errors.strip().splitlines() or ["without a word"])[-1][:400]


def run_in_process(
    module: str,
    words: Sequence[str],
    environment: dict[str, str],
    on_message: Callable[[dict[str, Any]], None],
    silent_seconds: float | None = None,
) -> EndedProcess:
    """Runs the module to its end; `on_message` gets each of its messages. With `silent_seconds` it is ended when it has said
    nothing for so long."""
    with tempfile.TemporaryFile("w+") as errors:
        process = start_module(module, words, environment, cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, stderr=errors, text=True)
        report, was_silent = _read_messages(process, on_message, silent_seconds)
        errors.seek(0)
        return EndedProcess(report=report, code=process.returncode, errors=errors.read(), was_silent=was_silent)


def _read_messages(
    process: subprocess.Popen, on_message: Callable[[dict[str, Any]], None], silent_seconds: float | None
) -> tuple[dict[str, Any] | None, bool]:
    """The report, and whether the process was ended for its silence."""
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


def _print_progress(message: dict[str, Any]) -> None:
    if "progress" in message:
        sys.stderr.write(message["progress"] + "\n")


def write_message(message: dict[str, Any]) -> None:
    """For the module: writes one JSON line at once."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
