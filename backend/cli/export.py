"""The commands `export` (webm, gif, animated webp, or PNG frames in a zip file) and `smooth` (more frames per second)."""

import argparse
import json
import sys
from typing import Any

from backend.cli.arguments import resolve_video_paths
from backend.errors import RequestError
from backend.media.export import ExportLimits, write_export
from backend.media.smooth import write_smooth
from backend.schemas.formats import BOUNDED, SUFFIXES


def export(arguments: argparse.Namespace) -> None:
    """Write the file and print its path, its size in pixels and its bytes. Raises: RequestError, OutputError, StudioError."""
    form = arguments.format
    source, output = resolve_video_paths(arguments.file, arguments.output, SUFFIXES[form])
    if arguments.max_mb is not None and form not in BOUNDED:
        raise RequestError(f"--max-mb was given for {form},", f"but it limits only {' and '.join(BOUNDED)}", "leave it out")
    bound = None if arguments.max_mb is None else int(arguments.max_mb * 1e6)
    made: dict[str, Any] = {"path": str(output.absolute())} | write_export(source, form, output, ExportLimits(max_bytes=bound))
    words = f"{output}: {made['width']} x {made['height']} pixels, {made['num_bytes'] / 1e6:.2f} MB"
    sys.stdout.write((json.dumps(made) if arguments.json else words) + "\n")


def smooth(arguments: argparse.Namespace) -> None:
    """Write the file and print its path, length and frame rate. Raises: RequestError, OutputError, StudioError."""
    source, output = resolve_video_paths(arguments.file, arguments.output, f"-{arguments.fps}fps.mp4")
    made = {"path": str(output.absolute())} | write_smooth(source, arguments.fps, output)
    words = f"{output}: {made['num_frames']} frames, {made['fps']} fps, by motion compensation"
    sys.stdout.write((json.dumps(made) if arguments.json else words) + "\n")
