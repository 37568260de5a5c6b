"""Assign waiting jobs to idle workers. Requeue or end interrupted jobs."""

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from backend.engine.disk import Shortage, find_shortage, needed_bytes
from backend.engine.event_log import EventLog
from backend.engine.instant import InstantDrafts
from backend.engine.job import Job
from backend.engine.lock import EngineLock
from backend.engine.recovery import QUIET_SECONDS, Requeue, decide_recovery, describe_progress
from backend.engine.scheduling import QueueEntry, place_at_index, sort_queue
from backend.engine.store import Store
from backend.engine.storyboards import add_shot
from backend.errors import StudioError
from backend.files import remove_half_written
from backend.schemas.events import Cancelled, Event, Failed, Finished, Interrupted, Queued, ShotFinished
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest, check_current_limits
from backend.schemas.shape import Shape
from backend.worker_pool.pool import WorkerPool
from backend.worker_pool.supervisor import Supervisor
from backend.workers.process import WorkerPlan

_LOOK_SECONDS = 1.0
_NEAR_PLACES = 10  # places at the front of the queue whose changes are reported immediately
# The interval between two reports of all places. It prevents a thousand events per started job in a queue of a thousand jobs.
_FAR_SECONDS = 5.0
_PREPARE_DELAY_SECONDS = 1.0
_MOST_PREPARATIONS = 8
_PREPARE_LIMIT_SECONDS = 120.0  # time limit for preparing one recent request, before the next recent request is prepared
_ADOPT_INTERVAL_SECONDS = 10.0  # interval between two searches for jobs of engines that have ended
_CLOSED = Interrupted(cause="The studio was stopped", fix="Start it again", by="shutdown")
_DIED = Interrupted(cause="The studio ended unexpectedly", fix="Generate it again", by="server")

logger = logging.getLogger(__name__)


def needed_preset(request: GenerationRequest) -> str:
    """Return the preset whose model the request needs, "" if the request only upscales a finished video."""
    return "" if request.finished_video else request.preset


def make_queue_entry(job: Job, shape: Shape, address: str = "", *, is_held: bool = False) -> QueueEntry:
    """`shape` selects the programs to compile."""
    return QueueEntry(
        job_id=job.id,
        owner=job.owner,
        shape=shape,
        place=job.place,
        preset=needed_preset(job.request),
        address=address,
        has_started=job.has_started,
        is_held=is_held,
        needed=needed_bytes(job.request),
    )


class Dispatcher:
    """The waiting and running jobs of one engine, and its workers. The event log's lock guards all state.

    `on_finished(shape, event, device_kind)` is called for each finished video, except live videos, storyboards and interrupted
    jobs. `load_seconds(model)` returns the seconds to load a checkpoint's model, None if not known.
    """

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        event_log: EventLog,
        store: Store,
        lock: EngineLock,
        runs: Path,
        *,
        shape_of: Callable[[Job], Shape],
        on_finished: Callable[[Shape, Finished, str], None],
        load_seconds: Callable[[str], float | None],
        has_local_weights: Callable[[str], bool],
    ):
        self._event_log, self._store, self._lock, self._runs = event_log, store, lock, runs
        self._shape_of, self._on_finished = shape_of, on_finished
        self._load_seconds, self._has_local_weights = load_seconds, has_local_weights
        self._waiting: list[QueueEntry] = []  # in the order in which they will run
        self._reported_places: dict[str, int] = {}  # the last reported place in the queue, by job id
        self._expected: tuple[str, ...] = ()  # the checkpoints that waiting jobs need, as last sent to the workers
        self._next_report = 0.0  # monotonic time of the next report of all places
        self.running: dict[str, QueueEntry] = {}  # by job id, in the order of their starts
        self._workers: dict[str, Supervisor] = {}  # the worker of each running job, by job id
        self._last: QueueEntry | None = None  # the job that started last
        self._last_fault = time.monotonic()  # monotonic time of the last interruption, except "disk" and "loss"
        self._next_adoption = math.inf
        # A request that a visitor may submit soon, its shape, and the monotonic time at which its preparation may start.
        self._preparation: tuple[GenerationRequest, Shape, float] | None = None
        # Requests of earlier videos. Idle workers will load their models and compile their programs.
        self._recent_requests: list[tuple[GenerationRequest, Shape]] = []
        self._last_preparation: tuple[Shape, float] | None = None  # the shape and time of the last preparation
        self._num_preparations = 0  # number of preparations since the last job started
        self._shortages: dict[str, Shortage] = {}  # by id of each job that waits for disk space; "" means all jobs
        self.pool = WorkerPool(plans, self._handle_event, self._dispatch)
        self.drafts = InstantDrafts(self.pool, event_log.changed, self._dispatch)

    def start(self, *, resume: bool, recent_requests: Sequence[tuple[GenerationRequest, Shape]] = ()) -> None:
        """Start the thread that serves the queue. With `resume`, requeue the jobs of ended engines, now and again later.

        Idle workers load the models and compile the programs of `recent_requests`.
        """
        self._recent_requests = list(recent_requests)
        if resume:
            self._adopt_abandoned_jobs()
        threading.Thread(target=self._run_periodic_work, name="engine", daemon=True).start()

    def waiting(self) -> list[QueueEntry]:
        with self._event_log.changed:
            return self._waiting.copy()

    def waiting_job_ids(self) -> list[str]:
        return [entry.job_id for entry in self.waiting()]

    def position(self, job_id: str) -> int | None:
        """Return the number of waiting jobs before this job, 0 for the next job. None if it runs or has ended."""
        return next((place for place, entry in enumerate(self.waiting()) if entry.job_id == job_id), None)

    def is_held(self, job_id: str) -> bool:
        return any(entry.job_id == job_id and entry.is_held for entry in self.waiting())

    def add(self, entry: QueueEntry) -> None:
        with self._event_log.changed:
            self._waiting.append(entry)
            self._sort_and_report()
            self._dispatch()

    def move(self, job_id: str, index: int) -> None:
        """Move a waiting job to place `index` (from 0) among its owner's jobs. Do nothing if the job no longer waits."""
        with self._event_log.changed:
            if job_id in self.waiting_job_ids():
                place = place_at_index(self._waiting, job_id, index)
                self._store.jobs.set_column(job_id, "place", place)
                self.update_entry(job_id, place=place)

    def prepare_for(self, request: GenerationRequest, shape: Shape) -> None:
        """Let a worker prepare for this request once no job waits or runs, but not within a second. Only the last call counts."""
        with self._event_log.changed:
            self._preparation = (request, shape, time.monotonic() + _PREPARE_DELAY_SECONDS)

    def find_shortage(self, owner: str | None = None) -> Shortage | None:
        """Return the shortage of the first job that waits for disk space, or None. With an owner, search only their jobs."""
        with self._event_log.changed:
            waiting = {"", *(entry.job_id for entry in self._waiting if owner is None or entry.owner == owner)}
            return next((lacking for job_id, lacking in self._shortages.items() if job_id in waiting), None)

    def cancel(self, job_id: str) -> None:
        """Cancel a waiting or running job. Raises: JobNotFound; StudioError if another engine owns the job."""
        with self._event_log.changed:
            if job_id in self.waiting_job_ids():
                self._waiting = [entry for entry in self._waiting if entry.job_id != job_id]
                self._end_job(job_id, Cancelled(None))
                self._sort_and_report()
            elif job_id in self.running:
                # If the worker dies first, the job is then cancelled instead of requeued.
                self._event_log.apply_change(self._store.jobs.set_column, job_id, "stopped", 1)
                self._workers[job_id].cancel(job_id)
            elif not self._store.jobs.find(job_id).has_ended and job_id not in self._store.jobs.unfinished_jobs(self._lock.name):
                fix = "use that server's page; if it has ended, try again in ten seconds"
                raise StudioError("another server on the same data folder makes this video and", "must stop it itself", fix)

    def send_cue(self, job_id: str, cue: Cue) -> None:
        """Send a prompt or action to the live video of this job. Do nothing if the job does not run."""
        with self._event_log.changed:
            if worker := self._workers.get(job_id):
                worker.send_cue(job_id, cue)

    def resume(self, job_id: str) -> None:
        """Release a held job. Do nothing to other jobs."""
        with self._event_log.changed:
            self._release_held([job_id])
            self._dispatch()

    def close(self) -> None:
        """Stop the workers and requeue the running jobs for the next engine. Call this after the event log was closed."""
        self.drafts.close()
        self.pool.close()
        with self._event_log.changed:
            for job_id in self.running:
                verdict = self._decide_recovery(job_id, _CLOSED)
                if isinstance(verdict, Requeue):
                    self._event_log.apply_change(self._store.jobs.requeue, job_id, False)
                else:
                    self._end_job(job_id, verdict)
            self._event_log.apply_pending_changes()

    def update_entry(self, job_id: str, **changes: object) -> None:
        """Change fields of a waiting job's entry in the queue, for example after its request was replaced."""
        with self._event_log.changed:
            self._waiting = [replace(entry, **changes) if entry.job_id == job_id else entry for entry in self._waiting]
            self._sort_and_report()

    def _handle_event(self, job_id: str, event: Event) -> None:
        with self._event_log.changed:
            if self.drafts.handle_event(job_id, event):
                self._dispatch()
                return
            if self._event_log.is_closed or job_id not in self.running:
                return
            if isinstance(event, Interrupted):
                entry = self._remove_running(job_id)
                if event.by == "disk":
                    self._event_log.pause()
                elif event.by != "loss":
                    self._last_fault = time.monotonic()
                verdict = self._decide_recovery(job_id, event)
                if isinstance(verdict, Requeue):
                    self._event_log.apply_change(self._store.jobs.requeue, job_id, verdict.waits)
                    self._waiting.append(replace(entry, has_started=True, is_held=verdict.waits))
                    self._sort_and_report()
                else:
                    self._end_job(job_id, verdict)
                self._dispatch()
                return
            if isinstance(event, Finished):
                try:
                    request = self._store.jobs.find(job_id).request
                    # The timings of interrupted, live and storyboard videos differ.
                    is_representative = not (self._store.events.interruptions(job_id) or request.is_open or request.shots)
                except sqlite3.Error:
                    is_representative = False
                if is_representative:
                    self._on_finished(self.running[job_id].shape, event, self._workers[job_id].view().device_kind)
                # Readers of a live video's final event need the request that regenerates the video, so it is stored first.
                if not event.result.request.is_open:
                    self._event_log.apply_change(self._store.jobs.replace_request, job_id, event.result.request, True)
            self._event_log.append(job_id, event)
            if isinstance(event, ShotFinished):
                try:
                    add_shot(self._store, self._runs, self._store.jobs.find(job_id), event, self._lock.name)
                    self._event_log.count_change()
                except (sqlite3.Error, OSError, StudioError):  # logged only: the storyboard still contains the shot
                    logger.exception("A shot of job %s could not be added to the library", job_id)
            if event.is_final:
                self._remove_running(job_id)
                self._dispatch()

    def _remove_running(self, job_id: str) -> QueueEntry:
        self._workers.pop(job_id, None)
        return self.running.pop(job_id)

    def _end_job(self, job_id: str, event: Failed | Cancelled) -> None:
        """End a job that no worker has. Remove the partial files of a killed worker."""
        self._event_log.append(job_id, event)
        try:
            remove_half_written(self._store.jobs.find(job_id).folder)
        except (sqlite3.Error, OSError):
            logger.exception("The partial files of job %s could not be removed", job_id)

    def _decide_recovery(self, job_id: str, interrupted: Interrupted) -> Requeue | Failed | Cancelled:
        """Store the interruption. Return `Requeue`, or the event that ends the job."""
        before: list[Interrupted] = []
        try:
            if self._store.jobs.find(job_id).is_stopped:
                return Cancelled(None)
            interrupted = replace(interrupted, place=describe_progress(self._store.events.last(job_id)))
            before = self._store.events.interruptions(job_id)
        except sqlite3.Error:
            logger.exception("The store could not be read; the job continues")
        self._event_log.append(job_id, interrupted)
        return decide_recovery([*before, interrupted])

    def _run_periodic_work(self) -> None:
        """Do the work that no event triggers, every second until the engine closes."""
        event_log = self._event_log
        with event_log.changed:
            while not event_log.is_closed:
                event_log.changed.wait_for(lambda: event_log.is_closed, _LOOK_SECONDS)
                if event_log.is_closed:
                    return
                try:
                    event_log.apply_pending_changes()
                    if time.monotonic() - self._last_fault > QUIET_SECONDS:
                        self._release_held([entry.job_id for entry in self._waiting if entry.is_held])
                    if time.monotonic() >= self._next_adoption:
                        self._adopt_abandoned_jobs()
                    self._dispatch()
                    is_due = time.monotonic() >= self._next_report
                    if is_due:
                        self._next_report = time.monotonic() + _FAR_SECONDS
                    if is_due and (moved := self._changed_places(len(self._waiting))):
                        self._event_log.append_events(moved)
                    self._prepare_ahead()
                except (sqlite3.Error, OSError):
                    logger.exception("The data folder could not be read")

    def _prepare_ahead(self) -> None:
        """Let an idle worker prepare for the request of `prepare_for`, or else of an earlier video.

        Prepared models stay in the worker's memory, so the number of preparations between two jobs is limited.
        """
        now, is_busy = time.monotonic(), bool(self._waiting or self.running or self.drafts.are_pending)
        if is_busy or self._num_preparations >= _MOST_PREPARATIONS or not self.pool.ready_workers():
            return
        warm = frozenset().union(*(worker.facts.warm for worker in self.pool.workers()))
        if self._preparation is not None and now >= self._preparation[2]:
            (request, shape, _), self._preparation = self._preparation, None
        elif self._recent_requests and (
            self._last_preparation is None
            or self._last_preparation[0] in warm
            or now > self._last_preparation[1] + _PREPARE_LIMIT_SECONDS
        ):
            request, shape = self._recent_requests.pop(0)
        else:
            return
        if shape not in warm:
            self._num_preparations += 1
            self._last_preparation = shape, now
            self.pool.prepare_for(request, shape)

    def _release_held(self, held: Collection[str]) -> None:
        for job_id in held:
            self._event_log.apply_change(self._store.jobs.set_column, job_id, "held", 0)
        if held:
            self._waiting = [replace(entry, is_held=entry.is_held and entry.job_id not in held) for entry in self._waiting]
            self._sort_and_report()

    def _dispatch(self) -> None:
        """Assign jobs to idle workers. If no job waits, start instant drafts on workers that slow down no running job."""
        with self._event_log.changed:
            if self._event_log.is_closed:
                return
            if not self._waiting:
                self._shortages = {}
            before = self._shortages
            self._assign_jobs()
            if before != self._shortages:
                self._event_log.count_change()
            is_waiting = any(not entry.is_held for entry in self._waiting)
            self.drafts.set_paused(is_waiting or not self.pool.can_run_drafts_beside(len(self.running)))

    def _assign_jobs(self) -> None:
        is_measured = False
        while len(self.running) < len(self.pool) and self.pool.has_idle_worker():
            if not is_measured:
                is_measured, self._shortages = True, self._find_shortages()
            lacking = self._shortages.keys()
            for entry in [one for one in self._waiting if not one.is_held and lacking.isdisjoint(("", one.job_id))]:
                # A job waits for a busy worker that will start it sooner than an idle worker can load the model.
                seconds = self._load_seconds(entry.shape.model) if len(self.pool) > 1 else None
                if seconds is None or not self.pool.is_busy_worker_faster(entry.shape.model, seconds):
                    break
            else:
                return
            try:
                job = self._store.jobs.find(entry.job_id)
                is_waiting = self._store.jobs.mark_running(job.id)
            except sqlite3.Error:
                logger.exception("Job %s could not be started; it keeps waiting", entry.job_id)
                self._event_log.pause()
                return
            self._waiting.remove(entry)
            if not is_waiting:
                continue
            self.running[entry.job_id] = self._last = entry
            self._num_preparations, is_measured = 0, False
            self._sort_and_report()
            try:
                worker = self.pool.assign(job.id, job.request, job.folder, entry.shape)
            except OSError as error:
                self._remove_running(job.id)
                failed = Failed(f"The worker could not be started: {error}", "Free memory, then try again")
                self._event_log.append(job.id, failed)
                continue
            if not worker:  # no worker is idle any more
                self._remove_running(job.id)
                self._event_log.apply_change(self._store.jobs.requeue, job.id, False)
                self._waiting.append(entry)
                self._sort_and_report()
                return
            self._workers[job.id] = worker

    def _find_shortages(self) -> dict[str, Shortage]:
        """Return the shortage of each waiting job for which the disk has too little space beside the running jobs, by job id.

        End each job that needs more than the whole disk. While the event log cannot write, the key "" means all jobs.
        """
        if self._event_log.is_stuck:
            return {"": next(iter(self._shortages.values()), Shortage(free=0, needed=0))}
        running = sum(entry.needed for entry in self.running.values())
        shortages: dict[str, Shortage] = {}
        for entry in self._waiting.copy():
            if (lacking := find_shortage(self._runs, entry.needed + running)) is None:
                continue
            if never := find_shortage(self._runs, entry.needed, of_whole_disk=True):
                self._waiting.remove(entry)
                self._end_job(entry.job_id, Failed(f"The disk cannot hold this video ({never})", "Make it smaller or shorter"))
            else:
                shortages[entry.job_id] = lacking
        return shortages

    def _sort_and_report(self) -> None:
        """Sort the waiting jobs. Report the places of new jobs, and changes among the first `_NEAR_PLACES` places."""
        last = [self._last] if self._last else []
        self._waiting = sort_queue(self._waiting, list(self.running.values()) or last, self.pool.cached_models())
        ready = [entry for entry in self._waiting if not entry.is_held]
        expected = tuple(dict.fromkeys(entry.shape.model for entry in ready))
        if expected != self._expected:
            self._expected = expected
            # Workers receive only the preset's name and load the model in the preset's number format. The name is not sent if the
            # next job uses another number format.
            preset = ready[0].preset if ready and ready[0].shape.quantize == "off" else ""
            self.pool.expect_models(expected, preset if preset and self.running and self._has_local_weights(preset) else None)
        self._event_log.append_events(self._changed_places(_NEAR_PLACES))

    def _changed_places(self, count: int) -> list[tuple[str, Queued]]:
        """Return the places of new jobs, and the changed places among the first `count` jobs."""
        before, self._reported_places, moved = self._reported_places, {}, []
        for place, entry in enumerate(self._waiting):
            old_place = before.get(entry.job_id)
            is_reported = old_place is None or (place < count and old_place != place)
            if is_reported:
                moved.append((entry.job_id, Queued(place)))
            self._reported_places[entry.job_id] = place if is_reported else old_place
        return moved

    def _adopt_abandoned_jobs(self) -> None:
        """Requeue the waiting and running jobs of dead engines."""
        with self._event_log.changed:
            self._next_adoption = time.monotonic() + _ADOPT_INTERVAL_SECONDS
            before = len(self._waiting)
            for engine in set(self._store.jobs.engines_with_open_jobs()) - {self._lock.name}:
                with self._lock.lock_dead_engine(engine) as is_dead:
                    for job_id in self._store.jobs.unfinished_jobs(engine) if is_dead else []:
                        self._adopt_job(job_id)
            if len(self._waiting) != before:
                self._sort_and_report()
                self._dispatch()

    def _adopt_job(self, job_id: str) -> None:
        """Requeue a dead engine's job. The job ends as failed if its request is no longer valid."""
        self._store.jobs.set_column(job_id, "engine", self._lock.name)
        try:
            job = self._store.jobs.find(job_id)
            check_current_limits(job.request)
            entry = make_queue_entry(job, self._shape_of(job), is_held=job.is_held)
        except StudioError as error:
            self._event_log.append(job_id, Failed(f"It is no longer accepted: {error.cause}", error.fix))
            return
        if job.state == "running":
            verdict = self._decide_recovery(job.id, _DIED)
            if not isinstance(verdict, Requeue):
                self._end_job(job.id, verdict)
                return
            entry = replace(entry, is_held=verdict.waits)
            self._store.jobs.requeue(job.id, verdict.waits)
        self._waiting.append(entry)
