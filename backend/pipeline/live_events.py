"""Yields the events that a long piece of work reports, while it runs; `until` lets such work be stopped."""

import queue
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

from backend.errors import Stopped
from backend.schemas.events import Event


def live_events(work: Callable[[Callable[[Event], None]], None]) -> Generator[Event]:
    """Runs `work(tell)` in a thread of its own and yields each event that it passes to `tell`, at once; `tell` may be called from
    any thread. Closing the iterator early waits for the work. Raises: whatever the work raises, after its last event."""
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(1, "live-events") as thread:
        working = thread.submit(work, events.put)
        working.add_done_callback(lambda _: events.put(None))
        while (event := events.get()) is not None:
            yield event
    working.result()


def until(is_stopped: Callable[[], bool], tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """A `tell` that raises Stopped once `is_stopped()` is true, which ends any work that reports its progress."""

    def tell_or_stop(event: Event) -> None:
        if is_stopped():
            raise Stopped
        tell(event)

    return tell_or_stop
