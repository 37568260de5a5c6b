"""Notify any number of pages of changes: of the engine's jobs, and of the states of its workers."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from weakref import WeakKeyDictionary

from backend.engine.engine import Engine
from wan_ui.services.broadcast import Broadcast

POLL_SECONDS = 1.0  # between two reads of the workers' states, which change without a change of the queue


async def watch_changes(engine: Engine, silence: float) -> AsyncIterator[float | None]:
    """Yield the present time, then the time of the first change since the previous yield, in seconds since the epoch.

    A change is a change of a job or of a worker's state. Yield None after `silence` seconds without a change. The iterator ends
    when the engine is closed.
    """
    broadcast = _BROADCASTS.setdefault(engine, Broadcast(lambda: _read_changes(engine), "changes", keeps_items=False))
    with broadcast.subscribe(time.time()) as follower:  # the present time makes a new page load the present state
        while not follower.has_ended:
            moments = await follower.next_items(silence)
            if not follower.has_ended:
                yield moments[0] if moments else None


_BROADCASTS: WeakKeyDictionary[Engine, Broadcast[float]] = WeakKeyDictionary()  # one broadcast per engine, for all pages


def _read_changes(engine: Engine) -> Iterator[Sequence[float]]:
    """Yield the time of each change, and an empty batch after POLL_SECONDS without a change. End when the engine is closed."""
    seen = engine.event_log.count_changes(), _worker_states(engine)
    while (count := engine.event_log.wait_for_change(seen[0], POLL_SECONDS)) is not None:
        moment, now = time.time(), (count, _worker_states(engine))
        yield (moment,) if now != seen else ()
        seen = now


def _worker_states(engine: Engine) -> str:
    return repr([(worker.status, len(worker.facts.warm), worker.facts.cached_models) for worker in engine.pool.workers()])
