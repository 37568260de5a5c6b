"""Progress in the output of a notebook's cell. Works with IPython 7.34 and later."""

import sys
import time
from collections.abc import Callable

from wan_studio.events import Event

SHORTEST_SECONDS = 0.5  # between two updates; notebook servers limit the bytes per second, and an update has a whole image


def make_display() -> Callable[[Event], None] | None:
    """Return a function that shows each event in one output of the current cell. None outside a notebook."""
    ipython = sys.modules.get("IPython")  # a notebook's kernel has imported it
    shell = ipython.get_ipython() if ipython else None
    if ipython is None or getattr(shell, "kernel", None) is None:
        return None
    handle, last = None, float("-inf")

    def show(event: Event) -> None:
        nonlocal handle, last
        if handle is None:
            handle = ipython.display.display(event, display_id=True)
        elif event.is_final or time.monotonic() - last >= SHORTEST_SECONDS:
            handle.update(event)
        else:
            return
        last = time.monotonic()

    return show
