"""Run this process's command line. The process was started by a command of `app.py` that does its work in a separate process."""

import argparse
import sys
from collections.abc import Callable

from backend.cli.command_line import FAILED, WRONG_REQUEST, parse, print_error
from backend.errors import RequestError, StudioError
from backend.imports import hide_unused_libraries


def run_command(run: Callable[[argparse.Namespace], int]) -> int:
    """Parse this process's command line, pass it to `run`, and return the exit code. Errors are printed as one line."""
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
