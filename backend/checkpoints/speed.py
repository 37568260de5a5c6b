"""Measure the speed of downloads and of reading weights."""

import time
from collections.abc import Callable


class Speed:
    """Measures the bytes per second since its first call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int) -> float:
        """Return the bytes per second, 0 while the speed is unknown. `done` is the total number of bytes so far."""
        now = self._clock()
        self._first = self._first or (now, done)
        seconds, count = now - self._first[0], done - self._first[1]
        return count / seconds if seconds > 0 else 0.0
