"""Run a command line of `app.py` in a separate process. Another command of `app.py` started this process."""

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
