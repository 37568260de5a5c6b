"""Read the queue that one visitor sees from the engine. Element id: `queue`. Items have `data-job` and `data-state`."""

import threading
import time
from dataclasses import replace
from heapq import heapreplace
from weakref import WeakKeyDictionary

from backend.engine.engine import Engine
from backend.engine.job import ListedJob
from backend.errors import StudioError
from wan_ui.components.events import now_microseconds, stamp_html
from wan_ui.queue.html import Entry, Queue, queue_html
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import list_view
from wan_ui.services.studio_context import StudioContext

MOST_RECENT = 5
PAUSE_FACTOR = 4.0  # after a read, wait this many times its duration, so that frequent changes do not occupy a core
FRESH_SECONDS = 1.0  # the largest age of a snapshot; estimated waits change without a change of the queue


class QueueReader:
    """Reads the queue of one engine, once for all pages that ask at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot: Queue | None = None
        self._changes, self._read, self._next_read = -1, 0.0, 0.0

    def read(self, context: StudioContext) -> Queue:
        """Return the running and waiting jobs of all visitors. Wait before the next read if the last read took long."""
        count_changes = context.engine.event_log.count_changes
        with self._lock:
            if self._snapshot is None or count_changes() != self._changes or time.monotonic() - self._read > FRESH_SECONDS:
                time.sleep(max(0.0, self._next_read - time.monotonic()))
                self._changes, self._read = count_changes(), time.monotonic()
                self._snapshot = _read_queue(context)
                self._next_read = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - self._read)
            return self._snapshot


_READERS: WeakKeyDictionary[Engine, QueueReader] = WeakKeyDictionary()


def visible_queue(context: StudioContext, caller: Caller) -> Queue:
    """Return the queue that this visitor sees. The operator sees all jobs."""
    engine = context.engine
    snapshot = _READERS.setdefault(engine, QueueReader()).read(context)
    waiting = tuple(entry for entry in snapshot.waiting if caller.may_see(entry.job.owner))
    running = tuple(entry for entry in snapshot.running if caller.may_see(entry.job.owner))
    unended = {entry.job.id for entry in (*running, *waiting)}
    # A job that ended after the snapshot was read is in the snapshot and among the ended jobs. List the job only once.
    ended = [job for job in engine.library.ended(caller.scope, MOST_RECENT) if job.id not in unended]
    return Queue(
        running=running,
        waiting=waiting,
        recent=tuple(_make_entry(context, job) for job in ended),
        others=len(snapshot.waiting) - len(waiting),
        shortage=engine.queue.find_shortage(caller.scope) if waiting else None,
    )


def stamped_queue_html(context: StudioContext, caller: Caller) -> str:
    """Render the queue with the time of reading, so that the page can ignore older versions."""
    now = now_microseconds()
    return stamp_html(queue_html(visible_queue(context, caller), caller.texts), now)


def _read_queue(context: StudioContext) -> Queue:
    # Read the order before the jobs. A job that starts between the two reads is then listed among the running jobs.
    places = {job_id: place for place, job_id in enumerate(context.engine.queue.waiting_job_ids())}
    everybody = {job.id: job for job in context.engine.library.unended(None)}.values()
    running = tuple(_make_entry(context, job) for job in everybody if job.state == "running")
    # Jobs that are missing in the order are sorted last: they were just queued, or belong to another server.
    queued = sorted((job for job in everybody if job.state == "queued"), key=lambda job: places.get(job.id, len(places)))
    # A heap with the seconds until each usable worker is free. Each job goes to the worker that is free first.
    free = [0.0] * max(1, sum(worker.is_healthy for worker in context.engine.pool.workers()))
    for entry in running:
        left = entry.view.seconds_left
        if left is None:
            estimated = context.engine.estimates.estimate_job(entry.job)
            left = estimated.seconds if estimated else 0.0
        heapreplace(free, free[0] + left)
    known, waiting, compiled = True, list[Entry](), set()
    for job in queued:
        try:
            entry = _make_entry(context, job)
        except StudioError:  # another version stored the request, or the job was deleted
            continue
        known = known and entry.estimate is not None
        done = free[0]
        if entry.estimate is not None:
            done += entry.estimate.seconds - (entry.estimate.compile_seconds or 0.0) * (entry.shape in compiled)
            compiled.add(entry.shape)
        heapreplace(free, done)
        waiting.append(replace(entry, wait=done if known else None, place=len(waiting) + 1))
    return Queue(running=running, waiting=tuple(waiting))


def _make_entry(context: StudioContext, job: ListedJob) -> Entry:
    view = list_view(context, job)
    if job.state != "queued":
        return Entry(job=job, view=view)
    shape = context.engine.estimates.shape_of_job(job)
    return Entry(
        job=job,
        view=view,
        shape=shape,
        estimate=context.engine.estimates.estimate_job(job),
        is_warm=context.engine.estimates.is_warm(shape),
    )
