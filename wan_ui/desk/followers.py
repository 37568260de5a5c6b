"""Follows a job's events for one page, without using one of Gradio's threads and without delaying other visitors."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

from backend.contract.events import Event, Failed
from backend.engine.engine import Engine
from backend.engine.store import Job
from backend.errors import StudioError
from wan_ui.desk.desk import Desk
from wan_ui.parts.progress import StageView, advance

SHORTEST_SECONDS = 0.08  # between two pictures: nobody sees a faster change, and the page would lag behind
REPLAY_SECONDS = 0.03  # by then the past events have arrived: the page shows only the last of them
HEARTBEAT_SECONDS = 2.0  # a page that was closed is noticed at the next picture, so there is always a next one


async def follow(engine: Engine, job_id: str) -> AsyncIterator[StageView]:
    """The job's view now and after each change, until its final event.

    Events are read by a thread of this follower's own (they block while nothing happens) and merged here: several that
    arrive at once make one view. Leaving the iterator early never touches the job.
    """
    arrived: asyncio.Queue[Event | None] = asyncio.Queue()
    is_left = threading.Event()
    _start_reader(engine, job_id, arrived, is_left)
    view, is_over = StageView(phase="queued"), False
    try:
        await asyncio.sleep(REPLAY_SECONDS)
        while not is_over:
            view, is_over = await _next_view(view, arrived)
            yield placed(view, engine, job_id)
            await asyncio.sleep(SHORTEST_SECONDS)
    finally:
        is_left.set()


def _start_reader(engine: Engine, job_id: str, arrived: asyncio.Queue, is_left: threading.Event) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            for _, event in engine.events(job_id):
                if is_left.is_set():
                    return
                loop.call_soon_threadsafe(arrived.put_nowait, event)
        except StudioError as error:
            loop.call_soon_threadsafe(arrived.put_nowait, Failed(cause=error.cause, fix=error.fix))
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, None)

    threading.Thread(target=read, name=f"follow-{job_id}", daemon=True).start()


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
    return replace(view, phase="queued", ahead=position)


def view_of(desk: Desk, job: Job) -> StageView:
    """The job's last event as a view; enough for a line about it."""
    if job.state == "queued":
        return StageView(phase="queued")
    event = desk.engine.last_event(job.id)
    return advance(StageView(phase="queued"), event) if event else StageView(phase="queued")
