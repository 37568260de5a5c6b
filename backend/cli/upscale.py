"""The command `upscale`: enlarge a video of the studio or any clip."""

import argparse
import json
import sys
from collections.abc import Callable

from backend.checkpoints.upscalers import adopt_upscaler, licence_notice, list_upscalers
from backend.cli.arguments import absolute
from backend.cli.command_line import OK
from backend.cli.generate import generate
from backend.engine.engine import Engine
from backend.errors import RequestError
from backend.media.finished import upscale_file_request
from backend.schemas.upscaling import EMBEDDED
from backend.settings import from_environment


def upscale(arguments: argparse.Namespace, make_engine: Callable[..., Engine] = Engine) -> int:
    """Enlarge the video, or list the upscalers. Return the exit code. Raises: RequestError, before any process starts."""
    folder = from_environment(arguments.data_dir).upscalers_dir
    if arguments.is_list:
        names = list_upscalers(folder)
        lines = [json.dumps(names)] if arguments.json else [licence_notice(name) or name for name in names]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return OK
    if arguments.file is None:
        raise RequestError("FILE is missing:", "it is the video to enlarge", "give its path, or --list")
    name = adopt_upscaler(arguments.upscaler, folder) if arguments.upscaler else ""
    request = upscale_file_request(absolute(arguments.file), arguments.upscale, name)
    if licence := licence_notice(arguments.upscaler or EMBEDDED):
        sys.stderr.write(f"{licence}\n")
    return generate(arguments, make_engine, request)
