"""The queue and its workers: requests in, stored events out. Imports neither jax nor torch."""

import functools
import logging
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from backend.contract.events import Cancelled, Event, Failed, Finished, Interrupted, Queued
from backend.contract.request import GenerationRequest
from backend.contract.shape import Shape
from backend.contract.worker import Device, WorkerOptions, WorkerStatus, WorkerView, summary
from backend.engine.cleaning import NO_LIMITS, Cleaner, Limits
from backend.engine.disk import Shortage, needed_bytes, shortage
from backend.engine.estimate import Estimate, Run, estimate, predicted_seconds, runs_on
from backend.engine.folder import open_inputs, write_request
from backend.engine.library import Library
from backend.engine.lock import EngineLock
from backend.engine.order import Room, Waiting, in_turn, moved_place, new_place
from backend.engine.recovery import QUIET_SECONDS, GoOn, judge, place_of
from backend.engine.shelf import Shelf
from backend.engine.store import Job, Store, new_job_id
from backend.engine.weights_here import check_here, fits, has_weights
from backend.errors import DataFolderError, JobHasBegun, RequestError, StudioError
from backend.media.decoding import Decoding
from backend.settings import from_environment
from backend.shares import Share
from backend.workers.fleet import Fleet
from backend.workers.process import WorkerPlan
from presets import Preset, list_presets

__all__ = ["Engine", "Job", "WorkerStatus"]

_POLL_SECONDS = 1.0  # how late another process's event may be seen; our own events wake the reader at once
_LOOK_SECONDS = 1.0
_DISK_SECONDS = 5.0  # after a full disk, before the next try
_ADOPT_SECONDS = 10.0  # how late the end of another engine on the same folder is noticed
_CLOSED = Interrupted(cause="The studio was stopped", fix="Start it again", by="shutdown")
_DIED = Interrupted(cause="The studio ended unexpectedly", fix="Make it again", by="server")

logger = logging.getLogger(__name__)


class Engine:
    """Runs requests in worker processes, one at a time in each; safe to use from several threads.

    Jobs that were waiting or running when an earlier engine ended are queued again, and so are those whose worker has died: what
    was done of them is kept. `backend.engine.recovery` says when one waits for a person or fails instead.
    """

    def __init__(
        self,
        data_dir: Path,
        model: str | None = None,
        start_worker: bool = True,
        *,
        preset: str | None = None,
        warm_up: bool = True,
        resume: bool = True,
        pipeline: str | None = None,
        options: WorkerOptions | None = None,
        shares: Sequence[Share] = (Share(),),
        link: str = "process",
        limits: Limits = NO_LIMITS,
    ):
        """Opens the data folder and starts the workers: one for each of this machine's `shares`, reached through `link`.

        `model` replaces the presets' checkpoint, `preset` is loaded first, `warm_up` compiles its shapes ahead,
        `resume` continues with the jobs that earlier engines left, `pipeline` names a stand-in module for tests, `options` say
        how a worker uses its devices, `limits` how much the videos may take on the disk.
        Without `start_worker` the processes start with their first jobs. Raises: DataFolderError.
        """
        self.settings = settings = from_environment(data_dir)
        self._runs = _made(settings.runs_dir)
        self._store = Store(settings.data_dir / "jobs.sqlite3")
        self._lock = EngineLock(_made(settings.engines_dir))
        self.library = Library(self._store)
        self.shelf = Shelf(settings.data_dir / "jobs.sqlite3")
        self.cleaner = Cleaner(settings, self._store, self.shelf, self._lock, limits, on_removal=self.touch)
        self.decoding = Decoding()
        self._model = model
        self._changed = threading.Condition()
        self._changes = 0
        self._sequences: dict[str, int] = {}  # the number of the last event that was stored here, by job id
        self._estimates: dict[tuple, Estimate | None] = {}
        self._waiting: list[Waiting] = []  # in the order in which they will run
        self._announced: dict[str, int] = {}  # the place that was last reported, by job id
        self._running: dict[str, Waiting] = {}  # in the order in which they began
        self._last: Waiting | None = None  # the job that began last
        self._is_closed = False
        self._last_fault = time.monotonic()  # held jobs go on when this is long ago
        self._shortage: Shortage | None = None
        self._next_try = 0.0  # after a full disk
        self._next_adoption = time.monotonic() + _ADOPT_SECONDS if resume else math.inf
        self._unwritten: list[Callable[[], object]] = []  # changes that the store could not take, in order
        plan = WorkerPlan(
            preset=preset or _first_preset(model).name,
            model=model,
            warm_up=warm_up,
            settings=settings,
            pipeline=pipeline,
            options=options or WorkerOptions(),
            link=link,
        )
        self._fleet = Fleet(_plans(plan, shares), self._record, self._serve_next)
        if start_worker:
            self._fleet.start()
        if resume:
            self.cleaner.start()
            self._take_over()
        threading.Thread(target=self._look_after, name="engine", daemon=True).start()

    def submit(
        self,
        request: GenerationRequest,
        owner: str = "local",
        room: Room | None = None,
        *,
        may_download: bool = False,
    ) -> Job:
        """Stores the request with copies of its images, then queues it. `may_download` is for the operator.

        Raises: RequestError if it needs a download that it may not begin, ImageError if an image cannot be used, Busy if too many
        images are being opened, QueueFull if there is no `room` in line (None: any number may wait), DataFolderError if nothing
        can be written. After an error nothing is left on the disk.
        """
        self._check_here(request, may_download)
        if not request.inputs():
            return self._submitted(request, owner, room)
        self._check_open()
        return self.decoding.run(self._submitted, request, owner, room)

    def job(self, job_id: str) -> Job:
        """Raises: JobNotFound."""
        return self._store.job(job_id)

    def jobs(self, owner: str | None = None, *, most: int | None = None, seed: int | None = None) -> list[Job]:
        """All jobs, or those of one owner, or those with one seed, newest first; at most so many."""
        return self._store.jobs(owner, most=most, seed=seed)

    def events(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Yields the events with a sequence number above `after`, then new ones as they come; ends after the final one.

        Also ends when the engine closes. Raises: JobNotFound, at the call.
        """
        self._store.job(job_id)
        return self._follow(job_id, after)

    def position(self, job_id: str) -> int | None:
        """How many waiting jobs are before this one (0: it is next); None once it runs or has ended."""
        with self._changed:
            return next((number for number, entry in enumerate(self._waiting) if entry.job_id == job_id), None)

    def is_held(self, job_id: str) -> bool:
        """Whether the job waits until a person lets it go on."""
        with self._changed:
            return any(entry.job_id == job_id and entry.is_held for entry in self._waiting)

    def line(self) -> list[str]:
        """The ids of the waiting jobs in the order in which they will run."""
        with self._changed:
            return [entry.job_id for entry in self._waiting]

    def shortage(self) -> Shortage | None:
        """What the disk lacks for the next job, for which the queue waits; None while the queue goes on."""
        return self._shortage

    def changes(self) -> int:
        """A number that grows with each change: while it stays the same, there is nothing new to show."""
        return self._changes

    def wait_for_change(self, after: int, seconds: float) -> int | None:
        """Waits until `changes()` is no longer `after`, at most so long, and returns it; None once the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._changes != after, seconds)
            return None if self._is_closed else self._changes

    def touch(self) -> None:
        """Counts a change that was made outside the queue, so that every page looks again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def last_event(self, job_id: str) -> Event | None:
        """The job's newest event."""
        return self._store.last_event(job_id)

    def interruptions(self, job_id: str) -> list[Interrupted]:
        """How often and why work on this job was interrupted, oldest first."""
        return self._store.interruptions(job_id)

    def move(self, job_id: str, index: int) -> None:
        """Makes a waiting job number `index` (from 0) among its owner's; does nothing if it is no longer waiting."""
        with self._changed:
            if job_id not in self._ids():
                return
            place = moved_place(self._waiting, job_id, index)
            self._store.put(job_id, place)
            self._waiting = [replace(entry, place=place) if entry.job_id == job_id else entry for entry in self._waiting]
            self._replan()

    def revise(self, job_id: str, request: GenerationRequest, *, may_download: bool = False) -> Job:
        """Replaces the request of a waiting job; `may_download` as for `submit`.

        Raises: JobHasBegun if it is no longer waiting, RequestError if it needs a download that it may not begin, ImageError if
        an image cannot be used, Busy if too many are being opened. After an error nothing has changed.
        """
        self._check_here(request, may_download)
        if not request.inputs():
            return self._revised(job_id, request)
        return self.decoding.run(self._revised, job_id, request)

    def has_weights(self, preset: Preset) -> bool:
        """Whether a video can be made with this preset and without a download, judged by the files here."""
        return has_weights(preset, self._model)

    def shape(self, request: GenerationRequest) -> Shape:
        """What is compiled for this request."""
        return Shape.of(request, self._model)

    def estimate(self, request: GenerationRequest) -> Estimate | None:
        """How long it will take, from this machine's runs; without any, a prediction for TPUs, and None for other devices."""
        shape, worker = self.shape(request), self._known_worker()
        is_warm, devices = self.is_warm(shape), worker.facts.devices
        key = (shape, request.steps, is_warm, worker.device_kind)
        if key not in self._estimates:
            learned = estimate(request, shape, runs_on(worker.device_kind, self._store.timings()), is_warm)
            self._estimates[key] = learned or _predicted(request, devices, is_warm)
        return self._estimates[key]

    def is_warm(self, shape: Shape) -> bool:
        """Whether a worker has compiled all programs of this shape."""
        return any(shape in worker.facts.warm for worker in self.workers())

    def cancel(self, job_id: str) -> None:
        """Stops a job, waiting or running; does nothing to one that has ended.

        Raises: JobNotFound, StudioError for a job of another engine on the same data folder.
        """
        self._store.job(job_id)
        with self._changed:
            if job_id in self._ids():
                self._waiting = [entry for entry in self._waiting if entry.job_id != job_id]
                self._append(job_id, Cancelled(None))
                self._replan()
            elif job_id in self._running:
                self._write(functools.partial(self._store.stop, job_id))
                self._fleet.cancel(job_id)
            elif not self._store.job(job_id).has_ended and self._store.engine_of(job_id) != self._lock.name:
                raise StudioError(
                    "another server on the same data folder makes this video and",
                    "must stop it itself",
                    "use that server's page; if it has ended, try again in ten seconds",
                )

    def go_on(self, job_id: str) -> None:
        """Lets a held job go on; does nothing to others. Raises: JobNotFound."""
        self._store.job(job_id)
        with self._changed:
            self._release([job_id])
            self._dispatch()

    def workers(self) -> tuple[WorkerView, ...]:
        """All workers, always in the same order: state, devices, model, log and current job of each."""
        return self._fleet.workers()

    def worker_status(self, job_id: str | None = None) -> WorkerStatus:
        """The status of the worker that has this job; else a summary of all workers, "failed" only if all have failed."""
        worker = self._fleet.worker_of(job_id) if job_id else None
        return worker.status if worker else summary(self.workers())

    def close(self) -> None:
        """Stops the workers and the queue; waiting and running jobs stay stored, for the next engine. May be called twice."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self.cleaner.close()
        self.decoding.close()
        self._fleet.close()
        with self._changed:
            for job_id in self._running:
                verdict = self._judge(job_id, _CLOSED)
                if isinstance(verdict, GoOn):
                    self._write(functools.partial(self._store.put_back, job_id, is_held=False))
                else:
                    self._append(job_id, verdict)
            self._write_the_rest()
            self._store.close()
            self.shelf.close()
            self._lock.release()

    def _submitted(self, request: GenerationRequest, owner: str, room: Room | None) -> Job:
        images = open_inputs(request)
        job_id = new_job_id()
        folder = self._runs / job_id
        try:
            self._check_open()
            self._check_room(owner, room)
            folder.mkdir(parents=True)
            request = write_request(request, images, folder)
            return self._enqueue(job_id, request, owner, folder, room)
        except (OSError, sqlite3.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise DataFolderError(
                f"{folder.parent} cannot be written ({error}):",
                "it must be a folder with room",
                "make room, or choose another with --data-dir",
            ) from error
        except StudioError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _revised(self, job_id: str, request: GenerationRequest) -> Job:
        images, job = open_inputs(request), self._store.job(job_id)
        with self._changed:
            if job_id not in self._ids():
                raise JobHasBegun(
                    "this video is being made already and", "can be changed only while it waits", "stop it, or queue another"
                )
            request = write_request(request, images, job.folder)
            self._store.revise(job_id, request)
            shape = Shape.of(request, self._model)
            self._waiting = [replace(entry, shape=shape) if entry.job_id == job_id else entry for entry in self._waiting]
            self._replan()
            return self._store.job(job_id)

    def _enqueue(self, job_id: str, request: GenerationRequest, owner: str, folder: Path, room: Room | None) -> Job:
        now, shape = time.time(), Shape.of(request, self._model)
        with self._changed:
            self._check_open()
            self._check_room(owner, room)  # again: others may have come while the inputs were written
            place = new_place(self._waiting, owner, shape, now)
            job = Job(
                id=job_id,
                owner=owner,
                request=request,
                state="queued",
                created=now,
                started=None,
                ended=None,
                folder=folder,
                place=place,
            )
            self._store.add(job, self._lock.name)
            address = room.address if room else ""
            self._waiting.append(Waiting(job_id=job_id, owner=owner, shape=shape, place=place, address=address))
            self._replan()
            self._dispatch()
            return self._store.job(job_id)

    def _check_here(self, request: GenerationRequest, may_download: bool) -> None:
        if not may_download:
            check_here(request, self._model)

    def _check_room(self, owner: str, room: Room | None) -> None:
        with self._changed:
            if room is not None:
                room.check(self._waiting, owner)

    def _ids(self) -> list[str]:
        return [entry.job_id for entry in self._waiting]

    def _check_open(self) -> None:
        if self._is_closed:
            raise StudioError("the studio is shutting down and", "takes no more requests", "start it again")

    def _follow(self, job_id: str, after: int) -> Iterator[tuple[int, Event]]:
        has_looked = False
        while True:
            with self._changed:
                if self._is_closed:
                    return
                if has_looked and self._sequences.get(job_id, after + 1) <= after:
                    self._changed.wait(_POLL_SECONDS)  # another job's event: sixty readers must not all ask the store
                    continue
                has_ended = self._store.job(job_id).has_ended  # read first, so that no event is missed
                fresh, has_looked = self._store.events(job_id, after), True
                if not fresh and not has_ended:
                    self._changed.wait(_POLL_SECONDS)
            for after, event in fresh:
                yield after, event
            if has_ended:
                return

    def _record(self, job_id: str, event: Event) -> None:
        """Stores what a worker reports; a final event makes room for the next job, and so does an interruption."""
        with self._changed:
            if self._is_closed or job_id not in self._running:
                return
            if isinstance(event, Interrupted):
                self._put_back(job_id, event)
            else:
                self._append(job_id, event)
                if not event.is_final:
                    return
                self._learn(job_id, event)
                del self._running[job_id]
            self._dispatch()

    def _put_back(self, job_id: str, interrupted: Interrupted) -> None:
        """Queues a job again whose work was interrupted, or ends it: somebody has stopped it, or that was in vain too often. The
        caller holds the lock."""
        entry = self._running.pop(job_id)
        if interrupted.by == "disk":
            self._next_try = time.monotonic() + _DISK_SECONDS
        else:
            self._last_fault = time.monotonic()
        verdict = self._judge(job_id, interrupted)
        if not isinstance(verdict, GoOn):
            self._append(job_id, verdict)
            return
        self._write(lambda: self._store.put_back(job_id, verdict.waits))
        self._waiting.append(replace(entry, has_begun=True, is_held=verdict.waits))
        self._replan()

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
        self._append(job_id, interrupted)
        return judge([*before, interrupted])

    def _look_after(self) -> None:
        """Now and then does what no event starts; ends when the engine closes."""
        with self._changed:
            while not self._is_closed:
                self._changed.wait_for(lambda: self._is_closed, _LOOK_SECONDS)
                if self._is_closed:
                    return
                try:
                    self._write_the_rest()
                    if time.monotonic() - self._last_fault > QUIET_SECONDS:
                        self._release_held()
                    if time.monotonic() >= self._next_adoption:
                        self._next_adoption = time.monotonic() + _ADOPT_SECONDS
                        self._take_over()
                    self._dispatch()
                except (sqlite3.Error, OSError):
                    logger.exception("The data folder could not be read")

    def _release_held(self) -> None:
        """Nothing went wrong for a while, so the jobs that wait for a person go on. The caller holds the lock."""
        self._release([entry.job_id for entry in self._waiting if entry.is_held])

    def _release(self, held: Collection[str]) -> None:
        for job_id in held:
            self._write(functools.partial(self._store.release, job_id))
        if held:
            self._waiting = [replace(entry, is_held=entry.is_held and entry.job_id not in held) for entry in self._waiting]
            self._replan()

    def _serve_next(self) -> None:
        """A worker has become ready: perhaps one that had died, and jobs have been waiting for it."""
        with self._changed:
            if not self._is_closed:
                self._dispatch()

    def _dispatch(self) -> None:
        """Gives the next jobs to the workers that have none. The caller holds the lock."""
        if not self._waiting:
            self._shortage = None
        while self._waiting and not self._waiting[0].is_held and len(self._running) < len(self._fleet) and self._fleet.has_room():
            try:
                if not self._has_disk(self._waiting[0].job_id):
                    return
                is_waiting = self._store.start(self._waiting[0].job_id)
            except sqlite3.Error:
                logger.exception("A job could not be started; it waits")
                self._next_try = time.monotonic() + _DISK_SECONDS
                return
            entry = self._waiting.pop(0)
            if not is_waiting:
                continue
            self._running[entry.job_id] = self._last = entry
            self._replan()
            self._give(entry)

    def _has_disk(self, job_id: str) -> bool:
        """Whether the disk has room for this job beside those that run, and the store takes changes. Else the queue pauses."""
        before, self._shortage = self._shortage, None
        if time.monotonic() < self._next_try or self._unwritten:
            self._shortage = before or Shortage(free=0, needed=0)
            return False
        requests = [self._store.job(key).request for key in (job_id, *self._running)]
        self._shortage = shortage(self._runs, sum(map(needed_bytes, requests)))
        if before != self._shortage:
            self.touch()
        return self._shortage is None

    def _give(self, entry: Waiting) -> None:
        job = self._store.job(entry.job_id)
        try:
            is_given = self._fleet.give(job.id, job.request, job.folder, entry.shape)
            assert is_given, "there was room, and nobody else gives jobs"
        except OSError as error:
            del self._running[job.id]
            self._append(job.id, Failed(f"The worker could not be started: {error}", "Free memory, then try again"))

    def _replan(self) -> None:
        """Sorts the waiting jobs and reports each changed place. The caller holds the lock."""
        last = [self._last] if self._last else []
        self._waiting = in_turn(self._waiting, list(self._running.values()) or last)
        previous, self._announced = self._announced, {job_id: place for place, job_id in enumerate(self._ids())}
        moved = [(job_id, Queued(place)) for job_id, place in self._announced.items() if previous.get(job_id) != place]
        try:
            self._sequences |= self._store.append_all(moved)
        except sqlite3.Error:
            logger.exception("The places in line could not be stored")
        self._changes += 1
        self._changed.notify_all()

    def _known_worker(self) -> WorkerView:
        """The first worker whose devices are known, else the first."""
        workers = self.workers()
        return next((worker for worker in workers if worker.facts.devices), workers[0])

    def _learn(self, job_id: str, event: Event) -> None:
        """Keeps the seconds of a finished video; one that was stopped or interrupted says nothing about others."""
        worker = self._fleet.worker_of(job_id)
        if not isinstance(event, Finished) or worker is None:
            return
        try:
            if self._store.interruptions(job_id):
                return
            request = event.result.request
            self._store.add_timing(
                Run(
                    shape=self._running[job_id].shape,
                    steps=request.steps,
                    num_tokens=request.geometry().num_tokens,
                    seconds=event.result.seconds,
                    device=worker.device_kind,
                )
            )
            self._estimates.clear()
        except (sqlite3.Error, RequestError):
            logger.exception("What a video took could not be kept")

    def _append(self, job_id: str, event: Event) -> None:
        """Stores an event. The caller holds the lock."""

        def append() -> None:
            sequence = self._store.append(job_id, event)
            self._sequences |= {job_id: sequence} if sequence else {}

        self._write(append, is_wanted_later=event.is_final or isinstance(event, Interrupted))
        self.touch()

    def _write(self, change: Callable[[], object], *, is_wanted_later: bool = True) -> None:
        """Changes the store. If it cannot take the change now, because the disk is full or another process holds it, the change
        is made as soon as it can be, after those before it."""
        try:
            if not self._unwritten:
                change()
                return
        except sqlite3.Error:
            logger.exception("The store could not be changed")
            self._next_try = time.monotonic() + _DISK_SECONDS
        if is_wanted_later:
            self._unwritten.append(change)

    def _write_the_rest(self) -> None:
        """Makes the changes that the store could not take before. The caller holds the lock."""
        try:
            while self._unwritten:
                self._unwritten[0]()
                del self._unwritten[0]
                self.touch()
        except sqlite3.Error:
            self._next_try = time.monotonic() + _DISK_SECONDS

    def _take_over(self) -> None:
        """Queues the jobs of dead engines again, whether they were waiting or running."""
        with self._changed:
            before = len(self._waiting)
            for engine in set(self._store.engines_at_work()) - {self._lock.name}:
                with self._lock.of_dead_engine(engine) as is_dead:
                    for job in self._store.unfinished(engine) if is_dead else []:
                        self._adopt(job)
            if len(self._waiting) != before:
                self._replan()
                self._dispatch()

    def _adopt(self, job: Job) -> None:
        is_held = job.is_held
        if job.state == "running":
            verdict = self._judge(job.id, _DIED)
            if not isinstance(verdict, GoOn):
                self._append(job.id, verdict)
                return
            is_held = verdict.waits
            self._store.put_back(job.id, is_held)
        self._store.hand_over(job.id, self._lock.name)
        entry = Waiting(
            job_id=job.id,
            owner=job.owner,
            shape=self.shape(job.request),
            place=job.place,
            has_begun=job.has_begun,
            is_held=is_held,
        )
        self._waiting.append(entry)


def _predicted(request: GenerationRequest, devices: tuple[Device, ...], is_warm: bool) -> Estimate | None:
    seconds = predicted_seconds(request, devices)
    if seconds is None:
        return None
    compiling = 0.0 if is_warm else None
    return Estimate(seconds=seconds, compile_seconds=compiling, is_warm=is_warm, basis="predicted", runs=0)


def _plans(plan: WorkerPlan, shares: Sequence[Share]) -> list[WorkerPlan]:
    """The plan of each worker; if there are several, their names are numbered."""
    if len(shares) == 1:
        return [replace(plan, share=shares[0])]
    return [replace(plan, share=share, name=f"{plan.name}-{number}") for number, share in enumerate(shares, 1)]


def _first_preset(model: str | None) -> Preset:
    """The preset to load first: the one made for this checkpoint, else one of its kind, else the first of all."""
    presets = list_presets()
    named = [preset for preset in presets if model in (preset.model, preset.model_source)]
    return next(iter(named), None) or next((preset for preset in presets if model and fits(preset, model)), presets[0])


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataFolderError(
            f"{folder} cannot be made ({error.strerror}):", "the data folder must be writable", "choose another with --data-dir"
        ) from error
    return folder
