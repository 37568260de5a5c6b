"""Shares one piece of work among all callers who ask for the same thing at the same time."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SharedWork(Generic[Key, Result]):
    """For each key at most one call runs in a thread and one more waits, however many callers there are.

    A caller gets the result of a call that began after the caller asked, so that no result is older than the question.
    """

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Result]] = {}
        self._waiting: dict[Key, asyncio.Task[Result]] = {}

    async def result(self, key: Key, work: Callable[[], Result]) -> Result:
        """Return what `work()` returns, or what another caller's `work()` for the same key does. Raises: what it raises."""
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.create_task(self._run(key, work))
        return await asyncio.shield(task)

    async def _run(self, key: Key, work: Callable[[], Result]) -> Result:
        if (before := self._running.get(key)) is not None:
            await asyncio.wait({before})
        task = self._running[key] = self._waiting.pop(key)
        try:
            return await asyncio.to_thread(work)
        finally:
            if self._running.get(key) is task:
                del self._running[key]
