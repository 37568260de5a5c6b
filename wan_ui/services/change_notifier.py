"""Says to any number of pages that something has changed: what the engine counts, and the states of its workers."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from weakref import WeakKeyDictionary

from backend.engine.engine import Engine
from wan_ui.services.broadcast import Feed

LOOK_SECONDS = 1.0  # between two looks at the workers, whose states change without a change of the queue


async def changes(engine: Engine, silence: float) -> AsyncIterator[float | None]:
    """Yields at once and after each change or several the time of the first of them, in seconds since the epoch, and None after
    so many seconds without one. Ends when the engine is closed."""
    feed = _FEEDS.setdefault(engine, Feed(lambda: _moments(engine), "changes", is_kept=False))
    with feed.followed(time.time()) as follower:  # whatever there is now is news to a new page
        while not follower.is_over:
            moments = await follower.news(silence)
            if not follower.is_over:
                yield moments[0] if moments else None


_FEEDS: WeakKeyDictionary[Engine, Feed[float]] = WeakKeyDictionary()  # one for all pages


def _moments(engine: Engine) -> Iterator[Sequence[float]]:
    """When something has changed; nothing after LOOK_SECONDS without a change. Ends when the engine is closed."""
    seen = engine.changes(), _states(engine)
    while (count := engine.wait_for_change(seen[0], LOOK_SECONDS)) is not None:
        moment, now = time.time(), (count, _states(engine))
        yield (moment,) if now != seen else ()
        seen = now


def _states(engine: Engine) -> str:
    return repr([(worker.status, len(worker.facts.warm), worker.facts.kept) for worker in engine.workers()])
