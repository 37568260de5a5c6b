"""Saves what a stage has done so far in the job's folder, so that a fault costs one step or a few seconds.

The copy from the device comes between two steps, because the next step uses up the state; the file is written by a thread of
its own beside the next step.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

from backend.files import is_disk_full

KEEP_SECONDS = 2.0  # where steps are shorter than this, several of them pass between two files
MOST_SHARE = 0.01  # of the time that is spent on copies

logger = logging.getLogger(__name__)
State = TypeVar("State")


class StateSaver(Generic[State]):
    """Calls `write(state)` with the states that it is given, one at a time, in a thread. A context: leaving it waits for the file
    that is being written.

    An error of `write` is logged and leaves the last file in place; the disk being full is raised by the next `save`.
    """

    def __init__(self, write: Callable[[State], None], seconds: float = KEEP_SECONDS) -> None:
        self._write, self._seconds = write, seconds
        self._thread = ThreadPoolExecutor(1, "state-saver")
        self._writing: Future[None] | None = None
        self._next = time.monotonic() + seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._thread.shutdown()

    def is_due(self) -> bool:
        """Whether a new file is wanted now: the last one is written, and old enough."""
        return time.monotonic() >= self._next and (self._writing is None or self._writing.done())

    def save(self, copy: Callable[[], State]) -> None:
        """Writes `copy()`, which takes the state from the device; the copy is made before this returns.

        Raises: OSError if the last file could not be written because the disk is full.
        """
        began = time.monotonic()
        state = copy()
        now = time.monotonic()
        self.write(state)
        self._next = now + max(self._seconds, (now - began) / MOST_SHARE)

    def write(self, state: State) -> None:
        """As `save`, for a state that is on the host already."""
        self._raise_full_disk()
        self._next = time.monotonic() + self._seconds
        self._writing = self._thread.submit(self._write, state)

    def save_last(self, copy: Callable[[], State]) -> None:
        """Writes `copy()` before it returns, whether a file is due or not: the work is about to be stopped."""
        self.save(copy)
        self._raise_full_disk()

    def _raise_full_disk(self) -> None:
        error = self._writing.exception() if self._writing is not None else None
        self._writing = None
        if error is not None and is_disk_full(error):
            raise error
        if error is not None:
            logger.error("The state could not be kept", exc_info=error)


@contextlib.contextmanager
def saved_if_closed(saver: StateSaver, copy: Callable[[], Any] | None) -> Generator[None]:
    """Around a generator's `yield`: saves the state if the generator is closed there."""
    try:
        yield
    except GeneratorExit:
        if copy is not None:
            saver.save_last(copy)
        raise
