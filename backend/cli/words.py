"""The entry point of the separate processes in which some commands of `app.py` do their work."""

import argparse
import sys
from collections.abc import Callable

from backend.cli.command_line import FAILED, WRONG_REQUEST, parse, print_error
from backend.errors import RequestError, StudioError
from backend.imports import hide_unused_libraries


def run_command(run: Callable[[argparse.Namespace], int]) -> int:
    """Parse this process's command line, pass the arguments to `run`, and return the exit code. Print errors as one line."""
    hide_unused_libraries()
    try:
        return run(parse(sys.argv[1:]))
    except RequestError as error:
        print_error(error)
        return WRONG_REQUEST
    except (StudioError, OSError) as error:
        print_error(error)
    except KeyboardInterrupt:
        print_error("Stopped")
    return FAILED
