"""The queue at work: gives waiting jobs to workers that have none, and decides what becomes of those that are interrupted."""

import functools
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from backend.engine.disk import Shortage, capacity_lack, needed_bytes, shortage
from backend.engine.event_log import EventLog
from backend.engine.job import Job
from backend.engine.lock import EngineLock
from backend.engine.recovery import QUIET_SECONDS, GoOn, judge, place_of
from backend.engine.scheduling import Waiting, in_turn, moved_place
from backend.engine.store import Store
from backend.engine.storyboards import add_shot
from backend.errors import StudioError
from backend.files import remove_half_written
from backend.schemas.events import Cancelled, Event, Failed, Finished, Interrupted, Queued, ShotFinished
from backend.schemas.request import GenerationRequest, check_current_limits
from backend.schemas.shape import Shape
from backend.worker_pool.pool import WorkerPool
from backend.workers.process import WorkerPlan

_LOOK_SECONDS = 1.0
_NEAR_PLACES = 10  # these are reported at once when they change
_FAR_SECONDS = 5.0  # between two reports of the others: a thousand waiting jobs must not write a thousand events for each start
_WISH_SECONDS = 1.0
_MOST_FORESEEN = 8
_AHEAD_SECONDS = 120.0  # after that, the next of what was made lately comes, although this one is not ready
_ADOPT_SECONDS = 10.0  # how late the end of another engine on the same folder is noticed
_CLOSED = Interrupted(cause="The studio was stopped", fix="Start it again", by="shutdown")
_DIED = Interrupted(cause="The studio ended unexpectedly", fix="Make it again", by="server")

logger = logging.getLogger(__name__)


def needed_preset(request: GenerationRequest) -> str:
    """The preset whose model the request needs; "" if it needs none, because its video is finished and only made larger."""
    return "" if request.finished_video else request.preset


def waiting_entry(job: Job, shape: Shape, address: str = "", *, is_held: bool = False) -> Waiting:
    """The job's entry in the queue; `shape` is what is compiled for it."""
    return Waiting(
        job_id=job.id,
        owner=job.owner,
        shape=shape,
        place=job.place,
        preset=needed_preset(job.request),
        address=address,
        has_begun=job.has_begun,
        is_held=is_held,
        needed=needed_bytes(job.request),
    )


class Dispatcher:
    """The jobs of one engine that wait or run, and the workers that make them. All is guarded by the journal's lock.

    `runs` is the folder whose disk the jobs fill; `on_finished(job, event, device kind)` is called with what each video took;
    `load_seconds(model)` is how long a checkpoint's model takes to load, None if that is not known;
    `is_here(preset)` says whether a preset's model needs no download.
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
        on_finished: Callable[[Waiting, Finished, str], None],
        load_seconds: Callable[[str], float | None],
        is_here: Callable[[str], bool],
    ):
        self._event_log, self._store, self._lock, self._runs = event_log, store, lock, runs
        self._shape_of, self._on_finished, self._load_seconds, self._is_here = shape_of, on_finished, load_seconds, is_here
        self._waiting: list[Waiting] = []  # in the order in which they will run
        self._announced: dict[str, int] = {}  # the place that was last reported, by job id
        self._expected: tuple[str, ...] = ()  # the models that waiting jobs need, as the workers were told
        self._next_report = 0.0  # of all places
        self._running: dict[str, Waiting] = {}  # in the order in which they began
        self._last: Waiting | None = None  # the job that began last
        self._last_fault = time.monotonic()  # held jobs go on when this is long ago
        self._next_adoption = math.inf
        self._wish: tuple[GenerationRequest, Shape, float] | None = None  # what may be wanted, and from when on that counts
        self._lately: list[tuple[GenerationRequest, Shape]] = []  # what was made before the start, and may be wanted again
        self._ahead: tuple[Shape, float] | None = None  # what a worker was asked to make ready last, and when
        self._foreseen = 0  # wishes that were followed since the last job
        self._shortages: dict[str, Shortage] = {}  # what the disk lacks, by id of a job that waits for it; "" is every job
        self.pool = WorkerPool(plans, self._record, self._serve_next)

    def start(self, *, resume: bool, lately: Sequence[tuple[GenerationRequest, Shape]] = ()) -> None:
        """Begins to look after the queue; with `resume` also after jobs that engines leave behind, now and from now on. What was
        made `lately` is made ready while nobody wants anything."""
        self._lately = list(lately)
        if resume:
            self._take_over()
        threading.Thread(target=self._look_after, name="engine", daemon=True).start()

    def waiting(self) -> list[Waiting]:
        """The waiting jobs in the order in which they will run."""
        with self._event_log.changed:
            return self._waiting.copy()

    def add(self, entry: Waiting) -> None:
        """Puts a stored job into the line."""
        with self._event_log.changed:
            self._waiting.append(entry)
            self._replan()
            self._dispatch()

    def move(self, job_id: str, index: int) -> None:
        """Makes a waiting job number `index` (from 0) among its owner's; does nothing if it is no longer waiting."""
        with self._event_log.changed:
            if job_id in self._ids():
                place = moved_place(self._waiting, job_id, index)
                self._store.put(job_id, place)
                self._change(job_id, place=place)

    def foresee(self, request: GenerationRequest, shape: Shape) -> None:
        """Somebody may want this soon: while no job is there, what it needs is made ready. The last wish counts, once nobody has
        changed it for a second."""
        with self._event_log.changed:
            self._wish = (request, shape, time.monotonic() + _WISH_SECONDS)

    def shortage(self, owner: str | None = None) -> Shortage | None:
        """What the disk lacks for the first job of this owner, or of all, that waits for room on it; None if none does."""
        with self._event_log.changed:
            waiting = {"", *(entry.job_id for entry in self._waiting if owner is None or entry.owner == owner)}
            return next((lacking for job_id, lacking in self._shortages.items() if job_id in waiting), None)

    def reshape(self, job_id: str, request: GenerationRequest, shape: Shape) -> None:
        """A waiting job has got another request, of this shape."""
        self._change(job_id, shape=shape, preset=needed_preset(request), needed=needed_bytes(request))

    def cancel(self, job_id: str) -> None:
        """Stops a job, waiting or running; does nothing to one that has ended. Raises: StudioError for another engine's job."""
        with self._event_log.changed:
            if job_id in self._ids():
                self._waiting = [entry for entry in self._waiting if entry.job_id != job_id]
                self._end(job_id, Cancelled(None))
                self._replan()
            elif job_id in self._running:
                self._event_log.write(functools.partial(self._store.stop, job_id))
                self.pool.cancel(job_id)
            elif not self._store.job(job_id).has_ended and self._store.engine_of(job_id) != self._lock.name:
                raise StudioError(
                    "another server on the same data folder makes this video and",
                    "must stop it itself",
                    "use that server's page; if it has ended, try again in ten seconds",
                )

    def go_on(self, job_id: str) -> None:
        """Lets a held job go on; does nothing to others."""
        with self._event_log.changed:
            self._release([job_id])
            self._dispatch()

    def close(self) -> None:
        """Ends the workers, once the journal is closed; the jobs stay stored for the next engine, with what was done of them."""
        self.pool.close()
        with self._event_log.changed:
            for job_id in self._running:
                verdict = self._judge(job_id, _CLOSED)
                if isinstance(verdict, GoOn):
                    self._event_log.write(functools.partial(self._store.put_back, job_id, is_held=False))
                else:
                    self._end(job_id, verdict)
            self._event_log.write_the_rest()

    def _ids(self) -> list[str]:
        return [entry.job_id for entry in self._waiting]

    def _change(self, job_id: str, **changes: object) -> None:
        with self._event_log.changed:
            self._waiting = [replace(entry, **changes) if entry.job_id == job_id else entry for entry in self._waiting]
            self._replan()

    def _record(self, job_id: str, event: Event) -> None:
        """Stores what a worker reports; a final event makes room for the next job, and so does an interruption."""
        with self._event_log.changed:
            if self._event_log.is_closed or job_id not in self._running:
                return
            if isinstance(event, Interrupted):
                self._put_back(job_id, event)
            else:
                if event.is_final:  # whoever sees the end sees the final request
                    self._learn(job_id, event)
                    self._close_open(job_id, event)
                self._event_log.append(job_id, event)
                if isinstance(event, ShotFinished):
                    self._add_shot(job_id, event)
                if not event.is_final:
                    return
                self._forget(job_id)
            self._dispatch()

    def _add_shot(self, job_id: str, event: ShotFinished) -> None:
        """The shot is a video of its own from now on. One that cannot be kept so is still in the storyboard."""
        try:
            add_shot(self._store, self._runs, self._store.job(job_id), event, self._lock.name)
            self._event_log.touch()
        except (sqlite3.Error, OSError, StudioError):
            logger.exception("A shot of job %s could not be put into the library", job_id)

    def _put_back(self, job_id: str, interrupted: Interrupted) -> None:
        """Queues a job again whose work was interrupted, or ends it: somebody has stopped it, or that was in vain too often."""
        entry = self._forget(job_id)
        if interrupted.by == "disk":
            self._event_log.pause()
        elif interrupted.by != "loss":
            self._last_fault = time.monotonic()
        verdict = self._judge(job_id, interrupted)
        if not isinstance(verdict, GoOn):
            self._end(job_id, verdict)
            return
        self._event_log.write(lambda: self._store.put_back(job_id, verdict.waits))
        self._waiting.append(replace(entry, has_begun=True, is_held=verdict.waits))
        self._replan()

    def _forget(self, job_id: str) -> Waiting:
        """The job runs no longer."""
        return self._running.pop(job_id)

    def _end(self, job_id: str, event: Failed | Cancelled) -> None:
        """Ends a job that no worker has any more, and removes what a killed one has half written."""
        self._event_log.append(job_id, event)
        try:
            remove_half_written(self._store.job(job_id).folder)
        except (sqlite3.Error, OSError):
            logger.exception("The folder of job %s could not be tidied", job_id)

    def _judge(self, job_id: str, interrupted: Interrupted) -> GoOn | Failed | Cancelled:
        """Stores the interruption, and says what becomes of the job."""
        before: list[Interrupted] = []
        try:
            if self._store.job(job_id).is_stopped:
                return Cancelled(None)
            interrupted = replace(interrupted, place=place_of(self._store.last_event(job_id)))
            before = self._store.interruptions(job_id)
        except sqlite3.Error:
            logger.exception("The store could not be read; the job goes on")
        self._event_log.append(job_id, interrupted)
        return judge([*before, interrupted])

    def _look_after(self) -> None:
        """Now and then does what no event starts; ends when the engine closes."""
        event_log = self._event_log
        with event_log.changed:
            while not event_log.is_closed:
                event_log.changed.wait_for(lambda: event_log.is_closed, _LOOK_SECONDS)
                if event_log.is_closed:
                    return
                try:
                    event_log.write_the_rest()
                    if time.monotonic() - self._last_fault > QUIET_SECONDS:
                        self._release([entry.job_id for entry in self._waiting if entry.is_held])
                    if time.monotonic() >= self._next_adoption:
                        self._take_over()
                    self._dispatch()
                    self._report_places()
                    self._follow_wish()
                except (sqlite3.Error, OSError):
                    logger.exception("The data folder could not be read")

    def _follow_wish(self) -> None:
        """Lets an idle worker make ready what may be wanted: the last wish, or else what was made lately, one after the other.
        What is made ready stays in its memory, so without a job in between that ends after some wishes."""
        now, is_busy = time.monotonic(), bool(self._waiting or self._running)
        if is_busy or self._foreseen >= _MOST_FORESEEN or not self.pool.is_one_ready():
            return
        warm = frozenset().union(*(worker.facts.warm for worker in self.pool.workers()))
        if self._wish is not None and now >= self._wish[2]:
            (request, shape, _), self._wish = self._wish, None
        elif self._lately and (self._ahead is None or self._ahead[0] in warm or now > self._ahead[1] + _AHEAD_SECONDS):
            request, shape = self._lately.pop(0)
        else:
            return
        if shape not in warm:
            self._foreseen += 1
            self._ahead = shape, now
            self.pool.foresee(request, shape)

    def _release(self, held: Collection[str]) -> None:
        for job_id in held:
            self._event_log.write(functools.partial(self._store.release, job_id))
        if held:
            self._waiting = [replace(entry, is_held=entry.is_held and entry.job_id not in held) for entry in self._waiting]
            self._replan()

    def _serve_next(self) -> None:
        """A worker has become ready: perhaps one that had died, and jobs have been waiting for it."""
        with self._event_log.changed:
            if not self._event_log.is_closed:
                self._dispatch()

    def _dispatch(self) -> None:
        """Gives the next jobs to the workers that have none. A job for which the disk lacks room waits, and others pass it."""
        if not self._waiting:
            self._shortages = {}
        before, is_free = self._shortages, False
        while len(self._running) < len(self.pool) and self.pool.has_room():
            if not is_free:
                is_free, self._shortages = True, self._find_shortages()
            entry = self._next_to_give()
            if entry is None:
                break
            try:
                job = self._store.job(entry.job_id)
                is_waiting = self._store.start(job.id)
            except sqlite3.Error:
                logger.exception("A job could not be started; it waits")
                self._event_log.pause()
                return
            self._waiting.remove(entry)
            if not is_waiting:
                continue
            self._running[entry.job_id] = self._last = entry
            self._foreseen, is_free = 0, False
            self._replan()
            if not self._give(entry, job):
                return
        if before != self._shortages:
            self._event_log.touch()

    def _next_to_give(self) -> Waiting | None:
        """The first job in line that has room on the disk and gains nothing by waiting for a worker which keeps its model."""
        if "" in self._shortages:
            return None
        ready = (entry for entry in self._waiting if not entry.is_held and entry.job_id not in self._shortages)
        return next((entry for entry in ready if not self._had_better_wait(entry)), None)

    def _had_better_wait(self, entry: Waiting) -> bool:
        if len(self.pool) < 2:
            return False
        seconds = self._load_seconds(entry.shape.model)
        return seconds is not None and self.pool.is_worth_waiting(entry.shape.model, seconds)

    def _find_shortages(self) -> dict[str, Shortage]:
        """What the disk lacks, beside the running jobs, by id of a waiting job. Ends a job that the empty disk could not hold.
        While the store takes no changes, every job waits."""
        if self._event_log.is_stuck:
            return {"": next(iter(self._shortages.values()), Shortage(free=0, needed=0))}
        running = sum(entry.needed for entry in self._running.values())
        found: dict[str, Shortage] = {}
        for entry in self._waiting.copy():
            if (lacking := shortage(self._runs, entry.needed + running)) is None:
                continue
            if (never := capacity_lack(self._runs, entry.needed)) is not None:
                self._waiting.remove(entry)
                self._end(entry.job_id, Failed(f"The disk cannot hold this video ({never.in_all})", "Make it smaller or shorter"))
            else:
                found[entry.job_id] = lacking
        return found

    def _give(self, entry: Waiting, job: Job) -> bool:
        """Gives the job to a worker; False, and it waits again, if the last one that was idle has just gone."""
        try:
            if self.pool.give(job.id, job.request, job.folder, entry.shape):
                return True
        except OSError as error:
            self._forget(job.id)
            self._event_log.append(job.id, Failed(f"The worker could not be started: {error}", "Free memory, then try again"))
            return True
        self._forget(job.id)
        self._event_log.write(lambda: self._store.put_back(job.id, False))
        self._waiting.append(entry)
        self._replan()
        return False

    def _replan(self) -> None:
        """Sorts the waiting jobs; reports the places of new ones and those that are near and have changed."""
        last = [self._last] if self._last else []
        self._waiting = in_turn(self._waiting, list(self._running.values()) or last, self.pool.kept_models())
        ready = [entry for entry in self._waiting if not entry.is_held]
        expected = tuple(dict.fromkeys(entry.shape.model for entry in ready))
        if expected != self._expected:
            self._expected = expected
            preset = ready[0].preset if ready else ""
            self.pool.expect(expected, preset if preset and self._running and self._is_here(preset) else None)
        self._event_log.append_all(self._changed_places(_NEAR_PLACES))

    def _report_places(self) -> None:
        """Reports all changed places, now and then."""
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + _FAR_SECONDS
            if moved := self._changed_places(len(self._waiting)):
                self._event_log.append_all(moved)

    def _changed_places(self, count: int) -> list[tuple[str, Queued]]:
        """The places of new jobs, and those of the first `count` that are no longer what was reported last."""
        before, self._announced, moved = self._announced, {}, []
        for place, entry in enumerate(self._waiting):
            old_place = before.get(entry.job_id)
            is_reported = old_place is None or (place < count and old_place != place)
            if is_reported:
                moved.append((entry.job_id, Queued(place)))
            self._announced[entry.job_id] = place if is_reported else old_place
        return moved

    def _learn(self, job_id: str, event: Event) -> None:
        """Passes on what a finished video took; one that was interrupted, open or a storyboard says nothing about others."""
        worker = self.pool.worker_of(job_id)
        if not isinstance(event, Finished) or worker is None:
            return
        try:
            request = self._store.job(job_id).request
            is_of_use = not self._store.interruptions(job_id) and not request.is_open and not request.shots
        except sqlite3.Error:
            is_of_use = False
        if is_of_use:
            self._on_finished(self._running[job_id], event, worker.device_kind)

    def _close_open(self, job_id: str, event: Event) -> None:
        """An open video that has ended is from now on the request that makes it again."""
        if isinstance(event, Finished) and not event.result.request.is_open:
            self._event_log.write(functools.partial(self._store.close_open, job_id, event.result.request))

    def _take_over(self) -> None:
        """Queues the jobs of dead engines again, whether they were waiting or running."""
        with self._event_log.changed:
            self._next_adoption = time.monotonic() + _ADOPT_SECONDS
            before = len(self._waiting)
            for engine in set(self._store.engines_at_work()) - {self._lock.name}:
                with self._lock.of_dead_engine(engine) as is_dead:
                    for job_id in self._store.unfinished(engine) if is_dead else []:
                        self._adopt(job_id)
            if len(self._waiting) != before:
                self._replan()
                self._dispatch()

    def _adopt(self, job_id: str) -> None:
        """Queue a dead engine's job again; a job that the presets refuse today ends as failed."""
        self._store.hand_over(job_id, self._lock.name)
        try:
            job = self._store.job(job_id)
            check_current_limits(job.request)
            entry = waiting_entry(job, self._shape_of(job), is_held=job.is_held)
        except StudioError as error:
            self._event_log.append(job_id, Failed(f"It is no longer accepted: {error.cause}", error.fix))
            return
        if job.state == "running":
            verdict = self._judge(job.id, _DIED)
            if not isinstance(verdict, GoOn):
                self._end(job.id, verdict)
                return
            entry = replace(entry, is_held=verdict.waits)
            self._store.put_back(job.id, verdict.waits)
        self._waiting.append(entry)
