"""Share one call among all callers who need the same result at the same time."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SharedWork(Generic[Key, Result]):
    """Runs at most one call per key at a time, in a thread. All callers that ask during this call share the next call.

    A caller receives the result of a call that started after the caller asked, never an older result.
    """

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Result]] = {}
        self._waiting: dict[Key, asyncio.Task[Result]] = {}

    async def result(self, key: Key, work: Callable[[], Result]) -> Result:
        """Return the result of `work()`, or of another caller's `work()` for the same key. Errors of `work` are raised."""
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.create_task(self._run(key, work))
        return await asyncio.shield(task)

    async def _run(self, key: Key, work: Callable[[], Result]) -> Result:
        if (previous := self._running.get(key)) is not None:
            await asyncio.wait({previous})
        task = self._running[key] = self._waiting.pop(key)
        try:
            return await asyncio.to_thread(work)
        finally:
            if self._running.get(key) is task:
                del self._running[key]
