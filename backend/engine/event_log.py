"""The engine's journal: every event of every job is stored before anybody sees it, and readers are told that something changed.

What the store cannot take, because the disk is full or another process holds it, is stored as soon as it can be.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from backend.engine.store import Store
from backend.schemas.events import Event, Interrupted

_POLL_SECONDS = 1.0  # how late another process's event may be seen; our own events wake the reader at once
_TRY_SECONDS = 5.0  # after a change that the store could not take, before the next try

logger = logging.getLogger(__name__)


class EventLog:
    """The events of one engine's jobs. `changed` is the engine's one lock: whoever changes its queue holds it."""

    def __init__(self, store: Store, on_event: Sequence[Callable[[str, Event], None]] = ()):
        """Each of `on_event` is called with a job's id and each event that was stored of it; it must return at once."""
        self._store, self._on_event = store, on_event
        self.changed = threading.Condition()
        self.is_closed = False
        self._count = 0
        self._sequences: dict[str, int] = {}  # the number of the last event that was stored here, by id of a job that goes on
        self._pending_changes: list[Callable[[], object]] = []  # changes that the store could not take, in order
        self._next_try = 0.0  # seconds of the monotonic clock

    @property
    def is_stuck(self) -> bool:
        """Whether changes wait for the store, or one has just failed: no job should begin now."""
        return bool(self._pending_changes) or time.monotonic() < self._next_try

    def count(self) -> int:
        """A number that grows with each change: while it stays the same, there is nothing new to show."""
        return self._count

    def touch(self) -> None:
        """Counts a change, so that every reader looks again."""
        with self.changed:
            self._count += 1
            self.changed.notify_all()

    def wait(self, after: int, seconds: float) -> int | None:
        """Waits until `count()` is no longer `after`, at most so long, and returns it; None once the engine is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closed or self._count != after, seconds)
            return None if self.is_closed else self._count

    def close(self) -> None:
        """Ends all readers."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def append(self, job_id: str, event: Event) -> None:
        """Stores an event."""

        def append() -> None:
            sequence = self._store.append_event(job_id, event)
            if event.is_final:
                self._sequences.pop(job_id, None)
            elif sequence:
                self._sequences[job_id] = sequence
            if sequence:
                for tell in self._on_event:
                    tell(job_id, event)

        self.apply_change(append, is_wanted_later=event.is_final or isinstance(event, Interrupted))
        self.touch()

    def append_events(self, several: Sequence[tuple[str, Event]]) -> None:
        """Stores events of which none is final, all at once; they are lost if the store cannot take them now."""
        try:
            if several:
                self._sequences |= self._store.append_events(several)
        except sqlite3.Error:
            logger.exception("The places in line could not be stored")
        self.touch()

    def apply_change(self, change: Callable[[], object], *, is_wanted_later: bool = True) -> None:
        """Changes the store; if it cannot take the change now, the change is made later, after those before it."""
        with self.changed:
            try:
                if not self._pending_changes:
                    change()
                    return
            except sqlite3.Error:
                logger.exception("The store could not be changed")
                self.pause()
            if is_wanted_later:
                self._pending_changes.append(change)

    def apply_pending_changes(self) -> None:
        """Makes the changes that the store could not take before."""
        with self.changed:
            try:
                while self._pending_changes:
                    self._pending_changes[0]()
                    del self._pending_changes[0]
                    self.touch()
            except sqlite3.Error:
                self.pause()

    def pause(self) -> None:
        """The disk or the store is in trouble: `is_stuck` for a few seconds."""
        self._next_try = time.monotonic() + _TRY_SECONDS

    def follow_events(self, job_id: str, after: int) -> Iterator[tuple[int, Event]]:
        """Yields the job's events with a sequence number above `after`, then new ones as they come; ends after the final one, and
        when the engine closes."""
        has_looked = False
        while True:
            with self.changed:
                if self.is_closed:
                    return
                if has_looked and self._sequences.get(job_id, after + 1) <= after:
                    self.changed.wait(_POLL_SECONDS)  # another job's event: sixty readers must not all ask the store
                    continue
                has_ended = self._store.job(job_id).has_ended  # read first, so that no event is missed
                fresh, has_looked = self._store.events(job_id, after), True
                if not fresh and not has_ended:
                    self.changed.wait(_POLL_SECONDS)
            for after, event in fresh:
                yield after, event
            if has_ended:
                return
