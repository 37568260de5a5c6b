"""Follows a job's events for one page, without using one of Gradio's threads and without delaying other visitors."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from backend.engine.engine import Engine
from backend.engine.job import ListedJob
from backend.errors import StudioError
from backend.schemas.events import Event, Failed
from wan_ui.components.progress import StageView, advance
from wan_ui.services.broadcast import Feed
from wan_ui.services.studio_context import StudioContext

SHORTEST_SECONDS = 0.08  # between two pictures: nobody sees a faster change, and the page would lag behind
REPLAY_SECONDS = 0.03  # by then the past events have arrived: the page shows only the last of them
HEARTBEAT_SECONDS = 2.0  # a page that was closed is noticed at the next picture, so there is always a next one


async def follow(engine: Engine, job_id: str) -> AsyncIterator[StageView]:
    """The job's view now and after each change, until its final event.

    Events are read by one thread for each job (they block while nothing happens) and merged here: several that arrive at once
    make one view. Leaving the iterator early never touches the job.
    """
    view = StageView(phase="queued")
    with _feed(engine, job_id).followed() as follower:
        await asyncio.sleep(REPLAY_SECONDS)
        while not follower.is_over:
            view = functools.reduce(advance, await follower.news(HEARTBEAT_SECONDS), view)
            yield placed(view, engine, job_id)
            await asyncio.sleep(SHORTEST_SECONDS)


async def events_of(engine: Engine, job_id: str, seconds: float) -> AsyncIterator[list[Event]]:
    """The job's events so far, then those that have come since the last answer; none after so many seconds without one. Ends
    after the final event."""
    with _feed(engine, job_id).followed() as follower:
        while not follower.is_over:
            events = await follower.news(seconds)
            if events or not follower.is_over:
                yield events


_FEEDS: WeakKeyDictionary[Engine, dict[str, Feed[Event]]] = WeakKeyDictionary()
"""The events of each job that is followed, read once for all who follow it: the page and the routes follow the same engine."""
_LOCK = threading.Lock()


def _feed(engine: Engine, job_id: str) -> Feed[Event]:
    with _LOCK:
        feeds = _FEEDS[engine] = {one: feed for one, feed in _FEEDS.get(engine, {}).items() if not feed.is_over}
        return feeds.setdefault(job_id, Feed(lambda: _events(engine, job_id), f"follow-{job_id}", is_kept=True))


def _events(engine: Engine, job_id: str) -> Iterator[Sequence[Event]]:
    """The job's events one by one, and as the last one why they cannot be read."""
    try:
        for _, event in engine.events(job_id):
            yield (event,)
    except StudioError as error:
        yield (Failed(cause=error.cause, fix=error.fix),)


def placed(view: StageView, engine: Engine, job_id: str) -> StageView:
    """A waiting job's place right now; a job that no longer waits but has no event yet is starting."""
    if view.phase not in ("queued", "starting"):
        return view
    position = engine.queue_position(job_id)
    if position is None:
        return replace(view, phase="starting", what=engine.worker_status(job_id).detail)
    return replace(view, phase="queued", ahead=position, is_held=engine.is_held(job_id))


def view_of(context: StudioContext, job: ListedJob) -> StageView:
    """The job's last event as a view."""
    event = context.engine.last_event(job.id) if job.state != "queued" else None
    return advance(StageView(phase="queued"), event) if event else listed_view(context, job)


def listed_view(context: StudioContext, job: ListedJob) -> StageView:
    """The job's progress for a list. It has no `result`: `ListedJob` says whether there is a video, and no request is parsed."""
    match job.state:
        case "queued":
            return StageView(phase="queued", is_held=job.is_held, interrupted_at=_place(context, job))
        case "finished":
            return StageView(phase="finished", fraction=1.0)
        case "cancelled":
            return StageView(phase="cancelled")
    event = context.engine.last_progress(job.id)
    return advance(StageView(phase="queued"), event) if event else StageView(phase="queued")


def _place(context: StudioContext, job: ListedJob) -> str:
    """Where the work on a waiting job was interrupted; "" if it has not begun."""
    interruptions = context.engine.interruptions(job.id) if job.has_begun else []
    return interruptions[-1].place if interruptions else ""
