"""The command `export`: a video as webm, gif, animated webp, or its frames in a zip."""

import argparse
import json
import sys
from pathlib import Path

from backend.contract.formats import BOUNDED, SUFFIXES
from backend.errors import OutputError, RequestError
from backend.media.export import write_export


def export(arguments: argparse.Namespace) -> None:
    """Writes the file and says what it is. Raises: RequestError, OutputError, StudioError."""
    source, form = Path(arguments.file), arguments.format
    if not source.is_file():
        raise RequestError(f"{arguments.file!r}", "must be a video that is there", "check the path")
    if arguments.max_mb is not None and form not in BOUNDED:
        raise RequestError(f"--max-mb was given for {form},", f"and bounds {' and '.join(BOUNDED)}", "leave it out")
    output = Path(arguments.output or source.with_suffix(SUFFIXES[form]))
    if not output.parent.is_dir() or output.resolve() == source.resolve():
        raise OutputError(f"output={str(output)!r}", "must be another file in a folder that is there", "choose another")
    bound = None if arguments.max_mb is None else int(arguments.max_mb * 1e6)
    made = {"path": str(output.absolute())} | write_export(source, form, output, bound)
    words = f"{output}: {made['width']} x {made['height']} pixels, {made['num_bytes'] / 1e6:.2f} MB"
    sys.stdout.write((json.dumps(made) if arguments.json else words) + "\n")
