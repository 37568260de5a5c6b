"""The command `precompile`: write a preset's compiled programs to files, which the engine loads instead of compiling."""

import argparse
import errno
import json
import os
import sys
from pathlib import Path

from backend.catalog.measured_ratios import add_measured_ratios
from backend.cli.module_process import check_topology, compile_in_process, option_words
from backend.engine.instant import DRAFT_INPUTS
from backend.errors import OutputError, RequestError
from backend.schemas.numbers import check_size
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.settings import from_environment

SIZES = {"width": "width", "height": "height", "frames": "num_frames"}


def precompile(arguments: argparse.Namespace) -> None:
    """Write the files and print a list of them. Raises: RequestError, OutputError, StudioError."""
    preset = example_request(find_preset(arguments.preset), quantize=arguments.quantize).resolved_preset
    given = {option: getattr(arguments, option) for option in SIZES if getattr(arguments, option) is not None}
    own = {"width": preset.width, "height": preset.height, "num_frames": preset.num_frames}
    check_size(preset, **own | {SIZES[name]: value for name, value in given.items()})
    request = example_request(preset, mag_cache=arguments.mag_cache, sparse=arguments.sparse)
    add_measured_ratios(request, from_environment().magnitudes_dir)
    if arguments.instant and request.inputs().keys() - DRAFT_INPUTS:
        rule = "is only for presets that make videos from text or an image alone"
        raise RequestError(f"--instant with {preset.name}", rule, "leave out --instant")
    if arguments.topology is not None:
        check_topology(arguments.topology)
    folder = Path(arguments.output).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
    except OSError as error:
        rule = f"must be a writable folder ({error.strerror or error})"
        raise OutputError(f"output={arguments.output!r}", rule, "choose another") from None
    example_request(preset, progressive=arguments.progressive)
    names = ("preset", "topology", "progressive", "mag_cache", "sparse", "quantize", *SIZES)
    words = ["--output", str(folder), *option_words(arguments, *names), *["--instant"] * arguments.instant]
    report = compile_in_process("backend.cli.precompile_run", words, for_tpu=arguments.topology is not None)
    if arguments.json:
        sys.stdout.write(json.dumps(report) + "\n")
        return
    for entry in report["files"]:
        time = "kept" if entry["compile_seconds"] is None else f"{entry['compile_seconds']:.1f} s"
        sys.stdout.write(f"{entry['bytes'] / 1e6:7.1f} MB  {time:>12}  {entry['program']}\n")
    where = report["topology"] or f"this machine ({report['devices']} x {report['device_kind']})"
    sys.stdout.write(f"{report['preset']} for {where}, mesh {report['mesh']['guided']}\n")
    sys.stdout.write(f"{len(report['files'])} programs in {report['output']}, {report['seconds']:.0f} s in all\n")
    sys.stdout.write(f"to use them: python app.py serve --executables {report['output']}\n")
    if report["topology"]:
        note = "compiled without a TPU and not tested on a chip: if a chip cannot load them, the studio compiles them again"
        sys.stdout.write(f"{note}\n")
