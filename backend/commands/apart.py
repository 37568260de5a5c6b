"""Runs a module that compiles, in a process of its own, because libtpu reads its settings before jax is imported.

The module writes JSON lines to standard output, {"progress": TEXT} as it goes and {"report": OBJECT} last. Imports neither jax
nor torch.
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
from backend.errors import RequestError, StudioError
from backend.settings import PROJECT_FOLDER, compiler_environment, tpu_compiler_environment

AXES = ("dp", "sp", "tp")


def refuse_topology(topology: str) -> None:
    """Raises: RequestError where it names no chip that we know."""
    if topology.partition(":")[0] not in CHIPS or ":" not in topology:
        raise RequestError(
            f"topology={topology!r}", f"must be a chip and a shape, such as {', '.join(TOPOLOGIES)}", "chips: " + ", ".join(CHIPS)
        )


def mesh_words(arguments: argparse.Namespace) -> list[str]:
    """The mesh options that were given, as words for another command line."""
    given = [(axis, getattr(arguments, axis)) for axis in AXES]
    return [word for axis, size in given if size is not None for word in (f"--{axis}", str(size))]


def compile_apart(module: str, words: Sequence[str], *, for_tpu: bool) -> dict[str, Any]:
    """The module's report; its progress goes to standard error. Raises: StudioError where it ends without one."""
    if for_tpu and importlib.util.find_spec("libtpu") is None:
        raise StudioError(
            "The TPU compiler is not installed",
            "compiling for a described slice needs it, the studio does not",
            "pip install libtpu==0.0.51",
        )
    environment = tpu_compiler_environment() if for_tpu else compiler_environment()
    with tempfile.TemporaryFile("w+") as errors:
        found = _followed([sys.executable, "-m", module, *words], environment, errors)
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["without a word"])[-1][:400]
    if found is None:
        raise StudioError("The compiler stopped", last, "check the topology and the mesh, or report this as a bug")
    return found


def _followed(command: list[str], environment: dict[str, str], errors) -> dict[str, Any] | None:
    """Runs the command to its end and passes its progress on."""
    found = None
    with subprocess.Popen(
        command, cwd=PROJECT_FOLDER, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
        for line in process.stdout:
            message = json.loads(line)
            found = message.get("report", found)
            if "progress" in message:
                sys.stderr.write(message["progress"] + "\n")
    return found


def say(message: dict[str, Any]) -> None:
    """The module's side: one JSON line, at once."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
