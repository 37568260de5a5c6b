"""Store every event of every job before anyone sees it, and wake the threads that wait for events.

If the store cannot be written, because the disk is full or another process locks it, the changes are stored later.
"""

import functools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from backend.engine.store import Store
from backend.schemas.events import Event, Interrupted

_POLL_SECONDS = 1.0  # how often readers look for events of other processes; events of this process wake readers immediately
_TRY_SECONDS = 5.0  # delay between a failed write and the next attempt

logger = logging.getLogger(__name__)


class EventLog:
    """The events of one engine's jobs. `changed` is the engine's only lock; every change of the queue must hold it.

    Each function of `on_event` gets a job's id and each stored event, and must not block.
    """

    def __init__(self, store: Store, on_event: Sequence[Callable[[str, Event], None]] = ()):
        self._store, self._on_event = store, on_event
        self.changed = threading.Condition()
        self.is_closed = False
        self._count = 0
        self._sequences: dict[str, int] = {}  # the number of the last stored event, by id of each job that has not ended
        self._pending_changes: list[Callable[[], object]] = []  # failed writes, in order
        self._next_try = 0.0  # monotonic time until which `is_stuck` stays True after an error

    @property
    def is_stuck(self) -> bool:
        """True if changes are not yet stored or a write just failed. No job may start while this is True."""
        return bool(self._pending_changes) or time.monotonic() < self._next_try

    def count_changes(self) -> int:
        """Return a number that increases with each change of a job."""
        return self._count

    def count_change(self) -> None:
        with self.changed:
            self._count += 1
            self.changed.notify_all()

    def wait_for_change(self, after: int, seconds: float) -> int | None:
        """Wait up to `seconds` until `count_changes()` differs from `after`. Return the number, None if the engine is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closed or self._count != after, seconds)
            return None if self.is_closed else self._count

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def append(self, job_id: str, event: Event) -> None:
        """Store an event of a job."""

        def append() -> None:
            sequence = self._store.events.append(job_id, event)
            if event.is_final:
                self._sequences.pop(job_id, None)
            elif sequence:
                self._sequences[job_id] = sequence
            if sequence:
                for notify in self._on_event:
                    notify(job_id, event)
                if event.is_final:
                    self._store.files.measure_folder(job_id)

        self.apply_change(append, is_wanted_later=event.is_final or isinstance(event, Interrupted))
        self.count_change()

    def append_events(self, several: Sequence[tuple[str, Event]]) -> None:
        """Store several events, none of them final, in one transaction. If the store cannot be written now, all are lost."""
        try:
            if several:
                self._sequences |= self._store.events.append_several(several)
        except sqlite3.Error:
            logger.exception("The places in the queue could not be stored")
        self.count_change()

    def apply_change(self, change: Callable[..., object], *values: object, is_wanted_later: bool = True) -> None:
        """Call `change(*values)`, which changes the store.

        After an error, or while earlier changes are pending, keep the change for later, or drop it if not `is_wanted_later`.
        """
        with self.changed:
            try:
                if not self._pending_changes:
                    change(*values)
                    return
            except sqlite3.Error:
                logger.exception("The store could not be changed")
                self.pause()
            if is_wanted_later:
                self._pending_changes.append(functools.partial(change, *values))

    def apply_pending_changes(self) -> None:
        with self.changed:
            try:
                while self._pending_changes:
                    self._pending_changes[0]()
                    del self._pending_changes[0]
                    self.count_change()
            except sqlite3.Error:
                self.pause()

    def pause(self) -> None:
        """Set `is_stuck` for a few seconds after an error of the disk or the store."""
        self._next_try = time.monotonic() + _TRY_SECONDS

    def follow(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Yield the job's events with a number above `after`, then new events, until the final event or the engine's end.

        Raises: JobNotFound immediately, not at the first event.
        """
        self._store.jobs.find(job_id)
        return self._follow(job_id, after)

    def _follow(self, job_id: str, after: int) -> Iterator[tuple[int, Event]]:
        has_looked = False
        while True:
            with self.changed:
                if self.is_closed:
                    return
                if has_looked and self._sequences.get(job_id, after + 1) <= after:
                    self.changed.wait(_POLL_SECONDS)  # the store is not read: the job has no new event
                    continue
                # `has_ended` is read before the events. Otherwise a final event between the two reads would be missed.
                has_ended = self._store.jobs.find(job_id).has_ended
                fresh, has_looked = self._store.events.list_events(job_id, after), True
                if not fresh and not has_ended:
                    self.changed.wait(_POLL_SECONDS)
            for after, event in fresh:
                yield after, event
            if has_ended:
                return
