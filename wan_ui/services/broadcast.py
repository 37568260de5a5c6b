"""Passes on what one thread reads to any number of pages, each in its own event loop, without a thread for each of them."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
log = logging.getLogger(__name__)


class Follower(Generic[Item]):
    """One page that follows a feed. `is_over`: the last item was given."""

    def __init__(self, items: Sequence[Item | None]) -> None:
        self.loop, self.is_over = asyncio.get_running_loop(), False
        self._arrived: asyncio.Queue[Item | None] = asyncio.Queue()
        for item in items:
            self._arrived.put_nowait(item)

    def give(self, item: Item | None, is_kept: bool) -> None:
        """To be called in the page's loop. None is the end; of items that are not kept, one is enough until it is taken."""
        if is_kept or item is None or self._arrived.empty():
            self._arrived.put_nowait(item)

    async def news(self, seconds: float) -> list[Item]:
        """All that has arrived since the last call; none if nothing comes within so many seconds, or at the end."""
        try:
            items = [await asyncio.wait_for(self._arrived.get(), seconds)]
        except TimeoutError:
            return []
        while items[-1] is not None and not self._arrived.empty():
            items.append(self._arrived.get_nowait())
        self.is_over = items[-1] is None
        return [item for item in items if item is not None]


class Feed(Generic[Item]):
    """What `read` yields, in batches that may be empty.

    Where the items are `kept`, whoever comes later gets those before too, and all are read, whether anybody follows or not. Else
    reading ends with the last follower, as soon as the next batch comes.
    """

    def __init__(self, read: Callable[[], Iterator[Sequence[Item]]], name: str, *, is_kept: bool) -> None:
        self._read, self._name, self._is_kept = read, name, is_kept
        self._lock = threading.Lock()
        self._items: list[Item | None] = []
        self._followers: set[Follower[Item]] = set()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def followed(self, *first: Item) -> Generator[Follower[Item]]:
        """A follower, which is given these items first."""
        with self._lock:
            follower = Follower([*first, *self._items])
            self._followers.add(follower)
            if self._thread is None:
                self._thread = threading.Thread(target=self._pass_on, name=self._name, daemon=True)
                self._thread.start()
        try:
            yield follower
        finally:
            with self._lock:
                self._followers.discard(follower)

    @property
    def is_over(self) -> bool:
        """Whether all has been read that was to be kept."""
        with self._lock:
            return bool(self._items) and self._items[-1] is None

    def _pass_on(self) -> None:
        try:
            for items in self._read():
                with self._lock:
                    self._give(items)
                    if not self._followers and not self._is_kept:
                        self._thread = None
                        return
        except Exception:
            log.exception("what pages follow could not be read on: %s", self._name)
        with self._lock:
            self._give((None,))
            self._thread = self._thread if self._is_kept else None

    def _give(self, items: Sequence[Item | None]) -> None:
        self._items.extend(items if self._is_kept else ())
        for follower in self._followers:
            for item in items if not follower.loop.is_closed() else ():
                follower.loop.call_soon_threadsafe(follower.give, item, self._is_kept)
