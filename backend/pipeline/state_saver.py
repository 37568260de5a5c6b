"""Save an unfinished stage in the job's folder, so that a crash loses one step or a few seconds. The state is copied to the host
between two steps, because the next step overwrites it on the devices. A thread writes the file while the next step runs."""

import contextlib
import logging
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from backend.files import is_disk_full

KEEP_SECONDS = 2.0  # minimum time between two files; if steps take less time, not every step is saved
MOST_SHARE = 0.01  # maximum share of the running time that copies take; after a slow copy, the next copy waits longer

logger = logging.getLogger(__name__)
State = TypeVar("State")


class StateSaver(contextlib.ExitStack, Generic[State]):
    """Calls `write(state)` in a thread, for one state at a time. A context manager: leaving it waits for the last file. An error
    of `write` is logged and leaves the previous file in place. The next `save` raises the error if the disk is full."""

    def __init__(self, write: Callable[[State], None], seconds: float = KEEP_SECONDS) -> None:
        self._write, self._seconds = write, seconds
        super().__init__()
        self._thread = self.enter_context(ThreadPoolExecutor(1, "state-saver"))
        self._writing: Future[None] | None = None
        self._next = time.monotonic() + seconds

    def is_due(self) -> bool:
        return time.monotonic() >= self._next and (self._writing is None or self._writing.done())

    def save(self, copy: Callable[[], State]) -> None:
        """Copy the state, then write it in the thread. Raises: OSError if the last file failed because the disk is full."""
        began = time.monotonic()
        state = copy()
        now = time.monotonic()
        self.write(state)
        self._next = now + max(self._seconds, (now - began) / MOST_SHARE)

    def write(self, state: State) -> None:
        """Write a state that is already on the host, otherwise like `save`."""
        self._raise_full_disk()
        self._next = time.monotonic() + self._seconds
        self._writing = self._thread.submit(self._write, state)

    def save_last(self, copy: Callable[[], State]) -> None:
        """Write the state `copy()` and wait for the file, before the work stops."""
        self.save(copy)
        self._raise_full_disk()

    def _raise_full_disk(self) -> None:
        error = self._writing.exception() if self._writing is not None else None
        self._writing = None
        if error is not None and is_disk_full(error):
            raise error
        if error is not None:
            logger.error("The state could not be saved", exc_info=error)


@contextlib.contextmanager
def save_if_closed(saver: StateSaver, copy: Callable[[], object] | None) -> Generator[None]:
    """Save the state `copy()`, if given, if the generator that uses this block is closed inside the block."""
    try:
        yield
    except GeneratorExit:
        if copy is not None:
            saver.save_last(copy)
        raise
