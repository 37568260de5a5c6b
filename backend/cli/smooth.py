"""The command `smooth`: write a video with more frames per second."""

import argparse
import json
import sys

from backend.cli.arguments import resolve_video_paths
from backend.media.smooth import write_smooth


def smooth(arguments: argparse.Namespace) -> None:
    """Write the file and print its path, length and frame rate. Raises: RequestError, OutputError, StudioError."""
    source, output = resolve_video_paths(arguments.file, arguments.output, f"-{arguments.fps}fps.mp4")
    made = {"path": str(output.absolute())} | write_smooth(source, arguments.fps, output)
    words = f"{output}: {made['num_frames']} frames, {made['fps']} fps, by motion compensation"
    sys.stdout.write((json.dumps(made) if arguments.json else words) + "\n")
