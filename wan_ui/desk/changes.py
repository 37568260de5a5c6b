"""Says to any number of pages that something has changed, with one thread for all of them."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from backend.engine.engine import Engine

LOOK_SECONDS = 1.0  # between two looks at the workers, whose states change without a change of the queue


class _Page:
    """One that follows: `since` is when the first change came that it has not been told of, seconds since the epoch."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.since: float | None = None

    def tell(self, moment: float) -> None:
        """To be called in the page's loop."""
        self.since = self.since or moment
        self.changed.set()


class Changes:
    """The changes of one engine: those that it counts, and those of its workers' states."""

    def __init__(self, engine: Engine):
        self._engine, self._lock = engine, threading.Lock()
        self._pages: set[_Page] = set()
        self._thread: threading.Thread | None = None
        self._is_over = False

    async def follow(self, silence: float) -> AsyncIterator[float | None]:
        """Yields at once and after each change or several the time of the first of them, in seconds since the epoch, and None
        after so many seconds without one. Ends when the engine is closed."""
        page = _Page()
        page.tell(time.time())  # whatever there is now is news to a new page
        self._join(page)
        try:
            while True:
                try:
                    await asyncio.wait_for(page.changed.wait(), silence)
                except TimeoutError:
                    yield None
                    continue
                since, page.since = page.since, None
                page.changed.clear()
                if self._is_over:
                    return
                yield since
        finally:
            with self._lock:
                self._pages.discard(page)

    def _join(self, page: _Page) -> None:
        with self._lock:
            self._pages.add(page)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="changes", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        """Passes changes on until no page is left or the engine is closed."""
        seen, states = self._engine.changes(), self._states()
        while True:
            count = self._engine.wait_for_change(seen, LOOK_SECONDS)
            moment, now = time.time(), self._states()
            with self._lock:
                self._is_over = count is None
                if (count, now) != (seen, states):
                    for page in self._pages:
                        if not page.loop.is_closed():
                            page.loop.call_soon_threadsafe(page.tell, moment)
                if self._is_over or not self._pages:
                    self._thread = None
                    return
            seen, states = count, now

    def _states(self) -> str:
        return repr([worker.status for worker in self._engine.workers()])


_CHANGES: WeakKeyDictionary[Engine, Changes] = WeakKeyDictionary()


def changes_of(engine: Engine) -> Changes:
    """The engine's changes, the same for all who ask."""
    return _CHANGES.setdefault(engine, Changes(engine))
