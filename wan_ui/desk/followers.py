"""Follows a job's events for one page, without using one of Gradio's threads and without delaying other visitors."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from backend.contract.events import Event, Failed
from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.errors import StudioError
from wan_ui.desk.desk import Desk
from wan_ui.parts.progress import StageView, advance

SHORTEST_SECONDS = 0.08  # between two pictures: nobody sees a faster change, and the page would lag behind
REPLAY_SECONDS = 0.03  # by then the past events have arrived: the page shows only the last of them
HEARTBEAT_SECONDS = 2.0  # a page that was closed is noticed at the next picture, so there is always a next one


class _Reader:
    """Reads one job's events in one thread, for all who follow it. Those who come later get what was read before."""

    def __init__(self, engine: Engine, job_id: str):
        self._lock = threading.Lock()
        self._events: list[Event | None] = []  # None is the end
        self._followers: dict[asyncio.Queue[Event | None], asyncio.AbstractEventLoop] = {}
        threading.Thread(target=self._read, args=(engine, job_id), name=f"follow-{job_id}", daemon=True).start()

    def join(self) -> asyncio.Queue[Event | None]:
        """A queue with the events so far, which then gets those that come."""
        arrived: asyncio.Queue[Event | None] = asyncio.Queue()
        with self._lock:
            for event in self._events:
                arrived.put_nowait(event)
            self._followers[arrived] = asyncio.get_running_loop()
        return arrived

    def leave(self, arrived: asyncio.Queue[Event | None]) -> None:
        """Gives this queue nothing more."""
        with self._lock:
            self._followers.pop(arrived, None)

    @property
    def is_over(self) -> bool:
        """Whether the last event has been read."""
        with self._lock:
            return bool(self._events) and self._events[-1] is None

    def _read(self, engine: Engine, job_id: str) -> None:
        try:
            for _, event in engine.events(job_id):
                self._pass_on(event)
        except StudioError as error:
            self._pass_on(Failed(cause=error.cause, fix=error.fix))
        finally:
            self._pass_on(None)

    def _pass_on(self, event: Event | None) -> None:
        with self._lock:
            self._events.append(event)
            for arrived, loop in self._followers.items():
                if not loop.is_closed():
                    loop.call_soon_threadsafe(arrived.put_nowait, event)


class Readers:
    """The readers of an engine's jobs, one for each job that is followed, however many pages follow it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}

    def join(self, engine: Engine, job_id: str) -> tuple[_Reader, asyncio.Queue[Event | None]]:
        """The job's reader, and a queue of its events."""
        with self._lock:
            self._readers = {one: reader for one, reader in self._readers.items() if not reader.is_over}
            reader = self._readers.get(job_id) or _Reader(engine, job_id)
            self._readers[job_id] = reader
            return reader, reader.join()


_READERS: WeakKeyDictionary[Engine, Readers] = WeakKeyDictionary()  # the page and the routes follow the same engine


async def follow(engine: Engine, job_id: str) -> AsyncIterator[StageView]:
    """The job's view now and after each change, until its final event.

    Events are read by one thread for each job (they block while nothing happens) and merged here: several that arrive at once
    make one view. Leaving the iterator early never touches the job.
    """
    reader, arrived = _READERS.setdefault(engine, Readers()).join(engine, job_id)
    view, is_over = StageView(phase="queued"), False
    try:
        await asyncio.sleep(REPLAY_SECONDS)
        while not is_over:
            view, is_over = await _next_view(view, arrived)
            yield placed(view, engine, job_id)
            await asyncio.sleep(SHORTEST_SECONDS)
    finally:
        reader.leave(arrived)


async def events_of(engine: Engine, job_id: str, seconds: float) -> AsyncIterator[list[Event]]:
    """The job's events so far, then those that have come since the last answer; none after so many seconds without one. Ends
    after the final event."""
    reader, arrived = _READERS.setdefault(engine, Readers()).join(engine, job_id)
    try:
        while True:
            try:
                event, batch = await asyncio.wait_for(arrived.get(), seconds), []
            except TimeoutError:
                yield []
                continue
            while event is not None:
                batch.append(event)
                if arrived.empty():
                    break
                event = arrived.get_nowait()
            if batch:
                yield batch
            if event is None:
                return
    finally:
        reader.leave(arrived)


async def _next_view(view: StageView, arrived: asyncio.Queue[Event | None]) -> tuple[StageView, bool]:
    """Waits for an event; returns the view after all events that have arrived, and whether that was the end."""
    try:
        event = await asyncio.wait_for(arrived.get(), HEARTBEAT_SECONDS)
    except TimeoutError:
        return view, False
    while event is not None:
        view = advance(view, event)
        if arrived.empty():
            return view, False
        event = arrived.get_nowait()
    return view, True


def placed(view: StageView, engine: Engine, job_id: str) -> StageView:
    """A waiting job's place right now; a job that no longer waits but has no event yet is starting."""
    if view.phase not in ("queued", "starting"):
        return view
    position = engine.position(job_id)
    if position is None:
        return replace(view, phase="starting", what=engine.worker_status(job_id).detail)
    return replace(view, phase="queued", ahead=position, is_held=engine.is_held(job_id))


def view_of(desk: Desk, job: Job) -> StageView:
    """The job's last event as a view; enough for a line about it."""
    if job.state == "queued":
        return StageView(phase="queued", is_held=job.is_held, interrupted_at=_place(desk, job))
    event = desk.engine.last_event(job.id)
    return advance(StageView(phase="queued"), event) if event else StageView(phase="queued")


def _place(desk: Desk, job: Job) -> str:
    """Where the work on a waiting job was interrupted; "" if it has not begun."""
    interruptions = desk.engine.interruptions(job.id) if job.has_begun else []
    return interruptions[-1].place if interruptions else ""
