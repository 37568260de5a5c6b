"""The command `precompile`: a preset's programs as files that the engine loads in place of compiling them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from backend.commands.apart import compile_apart, mesh_words, refuse_topology
from backend.contract.request import check_size, find_preset
from backend.errors import OutputError

SIZES = {"width": "width", "height": "height", "frames": "num_frames"}


def precompile(arguments: argparse.Namespace) -> None:
    """Write the files and say what is there now. Raises: RequestError, OutputError, StudioError."""
    preset = find_preset(arguments.preset)
    given = {option: getattr(arguments, option) for option in SIZES if getattr(arguments, option) is not None}
    own = {"width": preset.width, "height": preset.height, "num_frames": preset.num_frames}
    check_size(preset, **own | {SIZES[name]: value for name, value in given.items()})
    if arguments.topology is not None:
        refuse_topology(arguments.topology)
    folder = _made(arguments.output)
    words = ["--preset", arguments.preset, "--output", str(folder), *mesh_words(arguments)]
    words += [word for name, value in given.items() for word in (f"--{name}", str(value))]
    words += ["--topology", arguments.topology] if arguments.topology else []
    found = compile_apart("backend.commands.precompile_run", words, for_tpu=arguments.topology is not None)
    sys.stdout.write((json.dumps(found) if arguments.json else _summary(found)) + "\n")


def _made(path: str) -> Path:
    folder = Path(path).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror) from None
    if not os.access(folder, os.W_OK):
        raise _unwritable(path, "Permission denied")
    return folder


def _unwritable(path: str, reason: str) -> OutputError:
    return OutputError(f"output={path!r}", f"must be a folder that can be written ({reason})", "choose another")


def _summary(found: dict) -> str:
    """For people: one line a file, and how to use them."""
    lines = [f"{file['bytes'] / 1e6:7.1f} MB  {_time(file['compile_seconds']):>12}  {file['program']}" for file in found["files"]]
    where = found["topology"] or f"this machine ({found['devices']} x {found['device_kind']})"
    lines.append(f"{found['preset']} for {where}, mesh {found['mesh']['guided']}")
    lines.append(f"{len(found['files'])} programs in {found['output']}, {found['seconds']:.0f} s in all")
    lines.append(f"to use them: python app.py serve --executables {found['output']}")
    if found["topology"]:
        lines.append("compiled without a TPU: that a chip loads them has not been seen; where it does not, the studio compiles")
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    return "was there" if seconds is None else f"{seconds:.1f} s"
