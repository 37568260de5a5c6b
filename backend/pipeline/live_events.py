"""Yield the events of a long function while it runs, and stop such a function."""

import queue
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

from backend.errors import Stopped
from backend.schemas.events import Event


def stream_events(work: Callable[[Callable[[Event], None]], None]) -> Generator[Event]:
    """Run `work(report)` in a thread, and yield each event that is passed to `report`, by any thread. Closing the iterator early
    waits for the thread. Raises: any error of `work`, after its last event."""
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(1, "live-events") as thread:
        working = thread.submit(work, events.put)
        working.add_done_callback(lambda _: events.put(None))
        while (event := events.get()) is not None:
            yield event
    working.result()


def stop_when(is_stopped: Callable[[], bool], report: Callable[[Event], None]) -> Callable[[Event], None]:
    """Wrap `report` so that it raises Stopped once `is_stopped()` is true."""

    def report_or_stop(event: Event) -> None:
        if is_stopped():
            raise Stopped
        report(event)

    return report_or_stop
