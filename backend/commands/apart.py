"""Runs a module that compiles in its own process: libtpu reads its settings before jax is imported.

The module writes JSON lines to standard output, {"progress": TEXT} while it works and {"report": OBJECT} last. Imports neither
jax nor torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from backend.chips import CHIPS, TOPOLOGIES
from backend.contract.worker import AXES
from backend.errors import RequestError, StudioError
from backend.settings import PROJECT_FOLDER, compiler_environment, tpu_compiler_environment


def refuse_topology(topology: str) -> None:
    """Raises: RequestError if it names no chip that we know."""
    if topology.partition(":")[0] not in CHIPS or ":" not in topology:
        raise RequestError(
            f"topology={topology!r}", f"must be a chip and a shape, such as {', '.join(TOPOLOGIES)}", "chips: " + ", ".join(CHIPS)
        )


def mesh_words(arguments: argparse.Namespace) -> list[str]:
    """The mesh options that were given, as words for another command line."""
    given = [(axis, getattr(arguments, axis)) for axis in AXES]
    return [word for axis, size in given if size is not None for word in (f"--{axis}", str(size))]


def compile_apart(module: str, words: Sequence[str], *, for_tpu: bool) -> dict[str, Any]:
    """The module's report; its progress goes to standard error. Raises: StudioError if it ends without a report."""
    if for_tpu and importlib.util.find_spec("libtpu") is None:
        raise StudioError(
            "The TPU compiler is not installed",
            "compiling for a described slice needs it, the studio does not",
            "pip install libtpu==0.0.51",
        )
    environment = tpu_compiler_environment() if for_tpu else compiler_environment()
    with tempfile.TemporaryFile("w+") as errors:
        report = _follow([sys.executable, "-m", module, *words], environment, errors)
        errors.seek(0)
        last_error = (errors.read().strip().splitlines() or ["without a word"])[-1][:400]
    if report is None:
        raise StudioError("The compiler stopped", last_error, "check the topology and the mesh, or report this as a bug")
    return report


def _follow(command: list[str], environment: dict[str, str], errors) -> dict[str, Any] | None:
    """The report of the command, which runs to its end; its progress is passed on."""
    report = None
    with subprocess.Popen(
        command, cwd=PROJECT_FOLDER, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
        for line in process.stdout:
            message = json.loads(line)
            report = message.get("report", report)
            if "progress" in message:
                sys.stderr.write(message["progress"] + "\n")
    return report


def say(message: dict[str, Any]) -> None:
    """For the module: writes one JSON line at once."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
