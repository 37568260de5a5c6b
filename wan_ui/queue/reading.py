"""Reads from the engine the queue as one visitor sees it. Element ids: `queue`; items carry `data-job`, `data-state`."""

from collections.abc import Iterable
from dataclasses import replace
from heapq import heapreplace

from backend.engine.estimate import Estimate
from backend.engine.store import Job
from wan_ui.desk.desk import Desk
from wan_ui.desk.followers import view_of
from wan_ui.desk.visit import Visit
from wan_ui.queue.html import Entry, Queue

MOST_RECENT = 5


def queue_of(desk: Desk, visit: Visit) -> Queue:
    """The queue as this visitor sees it; the operator sees everybody's."""
    engine = desk.engine
    line = engine.line()
    everybody = {job.id: job for job in engine.library.unended(None)}
    own = {key for key, job in everybody.items() if visit.may_see(job.owner)}
    running = tuple(_entry(desk, job) for key, job in everybody.items() if key in own and job.state == "running")
    waiting = _with_waits(desk, [everybody[key] for key in line if key in everybody], everybody)
    recent = tuple(_entry(desk, job) for job in engine.library.ended(visit.scope, MOST_RECENT))
    return Queue(
        running=running,
        waiting=tuple(entry for entry in waiting if entry.job.id in own),
        recent=recent,
        others=sum(key not in own for key in line),
    )


def _with_waits(desk: Desk, line: list[Job], everybody: dict[str, Job]) -> list[Entry]:
    """All waiting jobs, with the seconds until each should be done; each goes to the worker that is free first."""
    free = _free_in(desk, everybody.values())
    known, entries, compiled = True, [], set()
    for job in line:
        entry = _entry(desk, job)
        known = known and entry.estimate is not None
        done = free[0]
        if entry.estimate is not None:
            done += entry.estimate.seconds - (entry.estimate.compile_seconds or 0.0) * (entry.shape in compiled)
            compiled.add(entry.shape)
        heapreplace(free, done)
        entries.append(replace(entry, wait=done if known else None, place=len(entries) + 1))
    return entries


def _free_in(desk: Desk, jobs: Iterable[Job]) -> list[float]:
    """The seconds until each worker that can run is free, as a heap; one at least."""
    free = [0.0] * max(1, sum(worker.is_fit for worker in desk.engine.workers()))
    for job in jobs:
        if job.state == "running":
            heapreplace(free, free[0] + (_left(desk, job) or 0.0))
    return free


def _entry(desk: Desk, job: Job) -> Entry:
    estimated: Estimate | None = desk.engine.estimate(job.request) if job.state == "queued" else None
    shape = desk.engine.shape(job.request)
    return Entry(job=job, view=view_of(desk, job), shape=shape, estimate=estimated, is_warm=desk.engine.is_warm(shape))


def _left(desk: Desk, job: Job) -> float | None:
    view = view_of(desk, job)
    if view.seconds_left is not None:
        return view.seconds_left
    estimated = desk.engine.estimate(job.request)
    return estimated.seconds if estimated else None
