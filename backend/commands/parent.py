"""A process that a command starts: it ends with that one, whatever it does or waits for then, and does what its words say."""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable

from backend.commands.command_line import FAILED, WRONG_REQUEST, parse, print_error
from backend.errors import RequestError, StudioError
from backend.imports import hide_unused_libraries

_WATCH_SECONDS = 0.5


def end_with(parent: int) -> None:
    """Ends this process once the process `parent` is not its parent, or no more: within a second, without cleaning up.

    The parent tells its number. This process could ask for it too late.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def run_for_parent(run: Callable[[argparse.Namespace], int]) -> int:
    """What `run` makes of this process's words, the parent's number and those of `app.py`: the exit code, 0 if all went well."""
    hide_unused_libraries()
    end_with(int(sys.argv[1]))
    try:
        return run(parse(sys.argv[2:]))
    except RequestError as error:
        print_error(error)
        return WRONG_REQUEST
    except (StudioError, OSError) as error:
        print_error(error)
    except KeyboardInterrupt:
        print_error("Stopped")
    return FAILED
