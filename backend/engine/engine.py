"""The queue and its workers: requests in, stored events out. Imports neither jax nor torch."""

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from backend.contract.events import Cancelled, Event, Failed, Finished, Queued
from backend.contract.request import GenerationRequest
from backend.contract.shape import Shape
from backend.contract.worker import Device, WorkerOptions, WorkerStatus, WorkerView, summary
from backend.engine.estimate import Estimate, Run, estimate, predicted_seconds, runs_on
from backend.engine.folder import open_inputs, write_request
from backend.engine.library import Library
from backend.engine.lock import EngineLock
from backend.engine.order import Waiting, in_turn, moved_place, new_place
from backend.engine.shelf import Shelf
from backend.engine.store import Job, Store, new_job_id
from backend.engine.weights_here import check_here, fits, has_weights
from backend.errors import DataFolderError, JobHasBegun, QueueFull, RequestError, StudioError
from backend.media.decoding import Decoding
from backend.settings import from_environment
from backend.shares import Share
from backend.workers.fleet import Fleet
from backend.workers.process import WorkerPlan
from presets import Preset, list_presets

__all__ = ["Engine", "Job", "WorkerStatus"]

_POLL_SECONDS = 1.0  # how late another process's event may be seen; our own events wake the reader at once
_CLOSED = Failed("The studio was stopped while this video was being made", "Make it again")
_DIED = Failed("The studio ended unexpectedly while this video was being made", "Make it again")

logger = logging.getLogger(__name__)


class Engine:
    """Runs requests in worker processes, one at a time in each; safe to use from several threads.

    Jobs that were waiting when an earlier engine ended are queued again; those that were running are marked as failed and
    not repeated, because they may have brought the machine down.
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
    ):
        """Opens the data folder and starts the workers: one for each of this machine's `shares`, reached through `link`.

        `model` replaces the presets' checkpoint, `preset` is loaded first, `warm_up` compiles its shapes ahead,
        `resume` continues with the jobs that earlier engines left, `pipeline` names a stand-in module for tests, `options` say
        how a worker uses its devices.
        Without `start_worker` the processes start with their first jobs. Raises: DataFolderError.
        """
        self.settings = settings = from_environment(data_dir)
        self._runs = _made(settings.data_dir / "runs")
        self._store = Store(settings.data_dir / "jobs.sqlite3")
        self._lock = EngineLock(_made(settings.data_dir / "engines"))
        self.library = Library(self._store, self._runs)
        self.shelf = Shelf(settings.data_dir / "jobs.sqlite3")
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
            self.library.empty_bin()
            self._take_over()

    def submit(
        self,
        request: GenerationRequest,
        owner: str = "local",
        most_waiting: int | None = None,
        *,
        may_download: bool = False,
    ) -> Job:
        """Stores the request with copies of its images, then queues it. `may_download` is for the operator.

        Raises: RequestError if it needs a download that it may not begin, ImageError if an image cannot be used, Busy if too many
        images are being opened, QueueFull if the owner has `most_waiting` jobs in line already, DataFolderError if nothing can be
        written. After an error nothing is left on the disk.
        """
        self._check_here(request, may_download)
        if not request.inputs():
            return self._submitted(request, owner, most_waiting)
        self._check_open()
        return self.decoding.run(self._submitted, request, owner, most_waiting)

    def job(self, job_id: str) -> Job:
        """Raises: JobNotFound."""
        return self._store.job(job_id)

    def jobs(self, owner: str | None = None) -> list[Job]:
        """All jobs, or those of one owner, newest first."""
        return self._store.jobs(owner)

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

    def line(self) -> list[str]:
        """The ids of the waiting jobs in the order in which they will run."""
        with self._changed:
            return [entry.job_id for entry in self._waiting]

    def changes(self) -> int:
        """A number that grows with each change: while it stays the same, there is nothing new to show."""
        return self._changes

    def touch(self) -> None:
        """Counts a change that was made outside the queue, so that every page looks again."""
        with self._changed:
            self._changes += 1

    def last_event(self, job_id: str) -> Event | None:
        """The job's newest event."""
        return self._store.last_event(job_id)

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
        """Stops a job, waiting or running; does nothing to one that has ended. Raises: JobNotFound."""
        self._store.job(job_id)
        with self._changed:
            if job_id in self._ids():
                self._waiting = [entry for entry in self._waiting if entry.job_id != job_id]
                self._append(job_id, Cancelled(None))
                self._replan()
            elif job_id in self._running:
                self._fleet.cancel(job_id)

    def workers(self) -> tuple[WorkerView, ...]:
        """All workers, always in the same order: state, devices, model, log and current job of each."""
        return self._fleet.workers()

    def worker_status(self, job_id: str | None = None) -> WorkerStatus:
        """The status of the worker that has this job; else a summary of all workers, "failed" only if all have failed."""
        worker = self._fleet.worker_of(job_id) if job_id else None
        return worker.status if worker else summary(self.workers())

    def close(self) -> None:
        """Stops the workers and the queue; waiting jobs stay stored, running ones fail. May be called twice."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self.decoding.close()
        self._fleet.close()
        with self._changed:
            for job_id in self._running:
                self._append(job_id, _CLOSED)
            self._store.close()
            self.shelf.close()
            self._lock.release()

    def _submitted(self, request: GenerationRequest, owner: str, most_waiting: int | None) -> Job:
        images = open_inputs(request)
        job_id = new_job_id()
        folder = self._runs / job_id
        try:
            self._check_open()
            self._check_room(owner, most_waiting)
            folder.mkdir()
            request = write_request(request, images, folder)
            return self._enqueue(job_id, request, owner, folder)
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

    def _enqueue(self, job_id: str, request: GenerationRequest, owner: str, folder: Path) -> Job:
        now, shape = time.time(), Shape.of(request, self._model)
        with self._changed:
            self._check_open()
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
            self._waiting.append(Waiting(job_id=job_id, owner=owner, shape=shape, place=place))
            self._replan()
            self._dispatch()
            return self._store.job(job_id)

    def _check_here(self, request: GenerationRequest, may_download: bool) -> None:
        if not may_download:
            check_here(request, self._model)

    def _check_room(self, owner: str, most_waiting: int | None) -> None:
        with self._changed:
            waiting = sum(entry.owner == owner for entry in self._waiting)
        if most_waiting is not None and waiting >= most_waiting:
            raise QueueFull(
                f"you have {waiting} videos in line and",
                f"may have {most_waiting}",
                "wait for one of them, or take one out of the queue",
            )

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
        """Stores what a worker reports; a final event makes room for the next job."""
        with self._changed:
            if self._is_closed or job_id not in self._running:
                return
            self._append(job_id, event)
            if event.is_final:
                self._learn(job_id, event)
                del self._running[job_id]
                self._dispatch()

    def _serve_next(self) -> None:
        """A worker has become ready: perhaps one that had died, and jobs have been waiting for it."""
        with self._changed:
            if not self._is_closed:
                self._dispatch()

    def _dispatch(self) -> None:
        """Gives the next jobs to the workers that have none. The caller holds the lock."""
        while self._waiting and len(self._running) < len(self._fleet) and self._fleet.has_room():
            entry = self._waiting.pop(0)
            if not self._store.start(entry.job_id):
                continue
            self._running[entry.job_id] = self._last = entry
            self._replan()
            self._give(entry)

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
        """Keeps the seconds of a finished video; a stopped one says nothing about complete ones."""
        worker = self._fleet.worker_of(job_id)
        if not isinstance(event, Finished) or worker is None:
            return
        try:
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
        try:
            sequence = self._store.append(job_id, event)
            self._sequences |= {job_id: sequence} if sequence else {}
        except sqlite3.Error:
            logger.exception("An event of job %s could not be stored", job_id)
        self._changes += 1
        self._changed.notify_all()

    def _take_over(self) -> None:
        """Takes over the jobs of dead engines: waiting jobs are queued again, running ones have failed."""
        with self._changed:
            for engine in self._store.engines_at_work():
                with self._lock.of_dead_engine(engine) as is_dead:
                    for job in self._store.unfinished(engine) if is_dead else []:
                        self._adopt(job)
            self._replan()
            self._dispatch()

    def _adopt(self, job: Job) -> None:
        if job.state == "running":
            self._append(job.id, _DIED)
        else:
            self._store.hand_over(job.id, self._lock.name)
            self._waiting.append(Waiting(job_id=job.id, owner=job.owner, shape=self.shape(job.request), place=job.place))


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
