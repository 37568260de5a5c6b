"""Ensure that all calls to Ray end before the connection to the Ray cluster ends.

Otherwise Ray's native code can end the process without an error, or start another Ray on this machine.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_LOOK_SECONDS = 0.5  # interval at which a waiting call checks whether the connection ends


class Disconnected(Exception):
    """The connection is ending or has ended, so no call is allowed."""


class Calls:
    """Counts the running calls to Ray over one connection. `end` waits until no call runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_ended = False

    @contextmanager
    def count_call(self) -> Generator[None]:
        """Allow calls to Ray inside the block, and keep the connection open for them. Raises: Disconnected, on entry."""
        with self._changed:
            if self._is_ended:
                raise Disconnected
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def ask(self, actor: object, method: str, *values: object, seconds: float) -> Any:
        """Call the actor's method. Raises: RayError if it failed or did not answer in `seconds`; Disconnected."""
        with self.count_call():
            try:
                return self._answer(actor, method, values, seconds)
            except Exception as error:
                raise error.with_traceback(None) from error.__cause__  # a traceback would keep references to Ray objects

    def end(self, seconds: float) -> bool:
        """Refuse new calls and abort waiting ones. Return whether all calls ended within `seconds`."""
        with self._changed:
            self._is_ended = True
            return self._changed.wait_for(lambda: self._count == 0, seconds)

    def _answer(self, actor: object, method: str, values: tuple, seconds: float) -> object:
        import ray

        until = time.monotonic() + seconds
        answers = [getattr(actor, method).remote(*values)]
        while (left := until - time.monotonic()) > _LOOK_SECONDS and not ray.wait(answers, timeout=_LOOK_SECONDS)[0]:
            if self._is_ended:
                raise Disconnected
        return ray.get(answers.pop(), timeout=max(left, 0.0))
