"""Follow a job's events for one page, without one of Gradio's threads and without delays for other visitors."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from backend.engine.engine import Engine
from backend.engine.job import ListedJob
from backend.errors import StudioError
from backend.schemas.events import Event, Failed
from wan_ui.components.progress import StageView, advance_view
from wan_ui.services.broadcast import Broadcast
from wan_ui.services.studio_context import StudioContext

SHORTEST_SECONDS = 0.08  # between two updates of a page; visitors would not see faster changes, and the page would lag
REPLAY_SECONDS = 0.03  # before the first update, so that the page shows only the last of the past events
HEARTBEAT_SECONDS = 2.0  # the longest time between two updates; a closed page is noticed only at an update


async def follow_job(engine: Engine, job_id: str) -> AsyncGenerator[StageView]:
    """Yield the job's progress (a `StageView`) now and after each change, until the final event.

    One thread per job reads the events, because reading blocks. Events that arrive together give one `StageView`. A caller who
    stops early does not affect the job.
    """
    view = StageView(phase="queued")
    with _job_broadcast(engine, job_id).subscribe() as follower:
        await asyncio.sleep(REPLAY_SECONDS)
        while not follower.has_ended:
            view = functools.reduce(advance_view, await follower.next_items(HEARTBEAT_SECONDS), view)
            yield add_queue_position(view, engine, job_id)
            await asyncio.sleep(SHORTEST_SECONDS)


async def follow_events(engine: Engine, job_id: str, seconds: float) -> AsyncIterator[list[Event]]:
    """Yield the job's events so far, then batches of new events. A batch is empty after `seconds` without an event.

    The iterator ends after the final event.
    """
    with _job_broadcast(engine, job_id).subscribe() as follower:
        while not follower.has_ended:
            events = await follower.next_items(seconds)
            if events or not follower.has_ended:
                yield events


_BROADCASTS: WeakKeyDictionary[Engine, dict[str, Broadcast[Event]]] = WeakKeyDictionary()
"""The broadcasts of an engine's jobs by job id. All pages and routes that follow a job share its broadcast."""
_LOCK = threading.Lock()


def _job_broadcast(engine: Engine, job_id: str) -> Broadcast[Event]:
    with _LOCK:
        broadcasts = _BROADCASTS[engine] = {
            one: broadcast for one, broadcast in _BROADCASTS.get(engine, {}).items() if not broadcast.has_ended
        }
        return broadcasts.setdefault(
            job_id, Broadcast(lambda: _read_events(engine, job_id), f"follow-{job_id}", keeps_items=True)
        )


def _read_events(engine: Engine, job_id: str) -> Iterator[Sequence[Event]]:
    """Yield the job's events one by one. If reading fails, yield a `Failed` event with the reason."""
    try:
        for _, event in engine.event_log.follow(job_id):
            yield (event,)
    except StudioError as error:
        yield (Failed(cause=error.cause, fix=error.fix),)


def add_queue_position(view: StageView, engine: Engine, job_id: str) -> StageView:
    """Return `view` with the job's present queue position. A job that has left the queue has the phase "starting"."""
    if view.phase not in ("queued", "starting"):
        return view
    position = engine.queue.position(job_id)
    if position is None:
        return replace(view, phase="starting", what=engine.pool.status(job_id).detail)
    return replace(view, phase="queued", ahead=position, is_held=engine.queue.is_held(job_id))


def stage_view(context: StudioContext, job: ListedJob) -> StageView:
    """Return the job's progress after its last event."""
    event = context.engine.events.last(job.id) if job.state != "queued" else None
    return advance_view(StageView(phase="queued"), event) if event else list_view(context, job)


def list_view(context: StudioContext, job: ListedJob) -> StageView:
    """Return the job's progress for a list. The view of a finished job has no `result`."""
    match job.state:
        case "queued":
            interruptions = context.engine.events.interruptions(job.id) if job.has_started else []
            place = interruptions[-1].place if interruptions else ""  # the step or stage of the last interruption
            return StageView(phase="queued", is_held=job.is_held, interrupted_at=place)
        case "finished":
            return StageView(phase="finished", fraction=1.0)
        case "cancelled":
            return StageView(phase="cancelled")
    event = context.engine.events.last_progress(job.id)
    return advance_view(StageView(phase="queued"), event) if event else StageView(phase="queued")
