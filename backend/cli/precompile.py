"""The command `precompile`: write a preset's compiled programs to files, which the engine loads instead of compiling."""

import argparse
import json
import os
import sys
from pathlib import Path

from backend.catalog.measured_ratios import add_measured_ratios
from backend.cli.module_process import check_topology, compile_in_process, option_words
from backend.errors import OutputError
from backend.schemas.numbers import check_size
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.settings import from_environment

SIZES = {"width": "width", "height": "height", "frames": "num_frames"}


def precompile(arguments: argparse.Namespace) -> None:
    """Write the files and print a list of them. Raises: RequestError, OutputError, StudioError."""
    preset = find_preset(arguments.preset)
    given = {option: getattr(arguments, option) for option in SIZES if getattr(arguments, option) is not None}
    own = {"width": preset.width, "height": preset.height, "num_frames": preset.num_frames}
    check_size(preset, **own | {SIZES[name]: value for name, value in given.items()})
    add_measured_ratios(example_request(preset, mag_cache=arguments.mag_cache), from_environment().magnitudes_dir)
    if arguments.topology is not None:
        check_topology(arguments.topology)
    folder = _create_folder(arguments.output)
    example_request(preset, progressive=arguments.progressive)
    words = ["--output", str(folder)]
    words += option_words(arguments, "preset", "topology", "progressive", "mag_cache", *SIZES)
    report = compile_in_process("backend.cli.precompile_run", words, for_tpu=arguments.topology is not None)
    sys.stdout.write((json.dumps(report) if arguments.json else _format_report(report)) + "\n")


def _create_folder(path: str) -> Path:
    folder = Path(path).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable_error(path, error.strerror or str(error)) from None
    if not os.access(folder, os.W_OK):
        raise _unwritable_error(path, "Permission denied")
    return folder


def _unwritable_error(path: str, reason: str) -> OutputError:
    return OutputError(f"output={path!r}", f"must be a writable folder ({reason})", "choose another")


def _format_report(report: dict) -> str:
    """Return one line per file, and how to use the files."""
    lines = [
        f"{entry['bytes'] / 1e6:7.1f} MB  {_format_time(entry['compile_seconds']):>12}  {entry['program']}"
        for entry in report["files"]
    ]
    where = report["topology"] or f"this machine ({report['devices']} x {report['device_kind']})"
    lines.append(f"{report['preset']} for {where}, mesh {report['mesh']['guided']}")
    lines.append(f"{len(report['files'])} programs in {report['output']}, {report['seconds']:.0f} s in all")
    lines.append(f"to use them: python app.py serve --executables {report['output']}")
    if report["topology"]:
        lines.append(
            "compiled without a TPU and not tested on a chip: if a chip cannot load them, the studio compiles them again"
        )
    return "\n".join(lines)


def _format_time(seconds: float | None) -> str:
    return "kept" if seconds is None else f"{seconds:.1f} s"
