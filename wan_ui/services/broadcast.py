"""Read items in one thread, and deliver them to any number of pages. Each page waits in its event loop, not in a thread."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
log = logging.getLogger(__name__)


class Follower(Generic[Item]):
    """One page that follows a broadcast. `has_ended` is true after the page received the last item."""

    def __init__(self, items: Sequence[Item | None]) -> None:
        self.loop, self.has_ended = asyncio.get_running_loop(), False
        self._arrived: asyncio.Queue[Item | None] = asyncio.Queue()
        for item in items:
            self._arrived.put_nowait(item)

    def deliver(self, item: Item | None, is_needed: bool) -> None:
        """Add an item for the page. Call this in the page's event loop.

        The item None marks the end. If `is_needed` is false, the item is dropped while the page has not read an earlier item.
        """
        if is_needed or item is None or self._arrived.empty():
            self._arrived.put_nowait(item)

    async def next_items(self, seconds: float) -> list[Item]:
        """Return all items since the last call. The list is empty if no item arrives within `seconds`, or at the end."""
        try:
            items = [await asyncio.wait_for(self._arrived.get(), seconds)]
        except TimeoutError:
            return []
        while items[-1] is not None and not self._arrived.empty():
            items.append(self._arrived.get_nowait())
        self.has_ended = items[-1] is None
        return [item for item in items if item is not None]


class Broadcast(Generic[Item]):
    """Delivers the items that `read` yields to all followers. `read` yields items in batches, which may be empty.

    If `keeps_items` is true, later followers also receive the earlier items, and reading continues without followers. If it is
    false, reading stops at the next batch after the last follower has left.
    """

    def __init__(self, read: Callable[[], Iterator[Sequence[Item]]], name: str, *, keeps_items: bool) -> None:
        self._read, self._name, self._keeps_items = read, name, keeps_items
        self._lock = threading.Lock()
        self._items: list[Item | None] = []
        self._followers: set[Follower[Item]] = set()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def subscribe(self, *first: Item) -> Generator[Follower[Item]]:
        """Yield a follower that first receives the items `first`. Start the reading thread if needed."""
        with self._lock:
            follower = Follower([*first, *self._items])
            self._followers.add(follower)
            if self._thread is None:
                self._thread = threading.Thread(target=self._read_all, name=self._name, daemon=True)
                self._thread.start()
        try:
            yield follower
        finally:
            with self._lock:
                self._followers.discard(follower)

    @property
    def has_ended(self) -> bool:
        """True after the last item was read. Always false without `keeps_items`."""
        with self._lock:
            return bool(self._items) and self._items[-1] is None

    def _read_all(self) -> None:
        try:
            for items in self._read():
                with self._lock:
                    self._deliver(items)
                    if not self._followers and not self._keeps_items:
                        self._thread = None
                        return
        except Exception:
            log.exception("Reading of %s stopped: the pages that follow it receive no more items", self._name)
        with self._lock:
            self._deliver((None,))
            self._thread = self._thread if self._keeps_items else None

    def _deliver(self, items: Sequence[Item | None]) -> None:
        self._items.extend(items if self._keeps_items else ())
        for follower in self._followers:
            for item in items if not follower.loop.is_closed() else ():
                follower.loop.call_soon_threadsafe(follower.deliver, item, self._keeps_items)
