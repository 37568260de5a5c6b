"""Calls of Ray that end before the connection to its cluster does.

A call that a thread of ours makes while Ray shuts down, or a reference that it drops then, can make Ray's native code end the
whole process, without an error and with exit code 1; a call that comes later starts another Ray on this machine.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_LOOK_SECONDS = 0.5  # until a call that waits sees that the connection ends


class Disconnected(Exception):
    """The connection ends or has ended: no call is made any more."""


class Calls:
    """All calls of one connection."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_ended = False

    @contextmanager
    def count_call(self) -> Generator[None]:
        """Ray may be called within; the connection waits for the end of that. Raises: Disconnected, at the beginning."""
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
        """The answer of the actor's method. Raises: RayError, also for what the method raised, and without an answer in so many
        seconds; Disconnected."""
        with self.count_call():
            try:
                return self._answer(actor, method, values, seconds)
            except Exception as error:
                raise error.with_traceback(None) from error.__cause__  # Ray's frames hold references

    def end(self, seconds: float) -> bool:
        """Lets no call begin any more; those that wait for an answer give up. Whether all have ended within so many seconds."""
        with self._changed:
            self._is_ended = True
            return self._changed.wait_for(lambda: self._count == 0, seconds)

    def _answer(self, actor: object, method: str, values: tuple, seconds: float) -> Any:
        import ray

        until = time.monotonic() + seconds
        answers = [getattr(actor, method).remote(*values)]
        while (left := until - time.monotonic()) > _LOOK_SECONDS and not ray.wait(answers, timeout=_LOOK_SECONDS)[0]:
            if self._is_ended:
                raise Disconnected
        return ray.get(answers.pop(), timeout=max(left, 0.0))
