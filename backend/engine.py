"""The queue and its one worker: requests in, stored events out. Imports neither jax nor torch."""

import json
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from PIL.Image import Image

from backend.engine_lock import EngineLock
from backend.errors import DataFolderError, StudioError
from backend.events import Cancelled, Event, Failed, Queued
from backend.image_input import load_checked_image
from backend.request import GenerationRequest
from backend.settings import from_environment
from backend.store import Job, Store, new_job_id
from backend.worker_process import Supervisor, WorkerOptions, WorkerPlan, WorkerStatus
from presets import Preset, list_presets

__all__ = ["Engine", "Job", "WorkerStatus"]

_POLL_SECONDS = 1.0  # how late an event of another process's job may be seen; our own wake the reader at once
_CLOSED = Failed("The studio was stopped while this video was being made", "Make it again")
_DIED = Failed("The studio ended unexpectedly while this video was being made", "Make it again")

logger = logging.getLogger(__name__)


class Engine:
    """Runs requests one after another in a worker process; safe to use from several threads.

    Jobs that waited when an earlier engine ended are taken up again; the one that ran then is marked as failed and not
    repeated, because it may be what brought the machine down.
    """

    def __init__(
        self, data_dir: Path, model: str | None = None, start_worker: bool = True, *,
        preset: str | None = None, warm_up: bool = True, resume: bool = True, pipeline: str | None = None,
        options: WorkerOptions | None = None,
    ):  # fmt: skip
        """Opens the data folder and starts the worker.

        `model` replaces the presets' checkpoint, `preset` is loaded first, `warm_up` compiles its shapes ahead,
        `resume` takes up what earlier engines left, `pipeline` names a stand-in module for tests, `options` say how the
        worker uses its devices.
        Without `start_worker` the process starts with the first job. Raises: DataFolderError.
        """
        settings = from_environment(data_dir)
        self._runs = _made(settings.data_dir / "runs")
        self._store = Store(settings.data_dir / "jobs.sqlite3")
        self._lock = EngineLock(_made(settings.data_dir / "engines"))
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._running: str | None = None
        self._is_closed = False
        plan = WorkerPlan(preset=preset or _first_preset(model).name, model=model, warm_up=warm_up, settings=settings,
                          pipeline=pipeline, options=options or WorkerOptions())  # fmt: skip
        self._worker = Supervisor(plan, self._record)
        if start_worker:
            self._worker.start()
        if resume:
            self._take_over()

    def submit(self, request: GenerationRequest, owner: str = "local") -> Job:
        """Stores the request with copies of its images, then queues it.

        Raises: ImageError if an image cannot be used, DataFolderError if nothing can be written; nothing is left then.
        """
        images = {name: load_checked_image(path) for name in ("image", "last_image")
                  if (path := getattr(request, name)) is not None}  # fmt: skip
        job_id = new_job_id()
        folder = self._runs / job_id
        try:
            self._check_open()
            request = _written(request, images, folder)
            return self._enqueue(job_id, request, owner, folder)
        except (OSError, sqlite3.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise DataFolderError(f"{folder.parent} cannot be written ({error}):", "it must be a folder with room",
                                  "make room, or choose another with --data-dir") from error  # fmt: skip
        except StudioError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def job(self, job_id: str) -> Job:
        """Raises: JobNotFound."""
        return self._store.job(job_id)

    def jobs(self, owner: str | None = None) -> list[Job]:
        """All jobs, or those of one owner, newest first."""
        return self._store.jobs(owner)

    def events(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Replays the events with a sequence number above `after`, follows, ends after the final one.

        Also ends when the engine closes. Raises: JobNotFound, at the call.
        """
        self._store.job(job_id)
        return self._follow(job_id, after)

    def position(self, job_id: str) -> int | None:
        """How many waiting jobs stand before this one (0: it is next); None once it runs or has ended."""
        with self._changed:
            return self._waiting.index(job_id) if job_id in self._waiting else None

    def cancel(self, job_id: str) -> None:
        """Stops a job, waiting or running; does nothing to one that has ended. Raises: JobNotFound."""
        self._store.job(job_id)
        with self._changed:
            if job_id in self._waiting:
                self._waiting.remove(job_id)
                self._append(job_id, Cancelled(None))
                self._announce_positions(self._waiting)
            elif job_id == self._running:
                self._worker.cancel(job_id)

    def worker_status(self) -> WorkerStatus:
        """What the worker does right now: state starting|loading|warming|ready|busy|failed, and a sentence."""
        return self._worker.status()

    def worker_pid(self) -> int | None:
        """The worker's process id, or None while there is no such process."""
        return self._worker.pid

    def close(self) -> None:
        """Stops the worker and the queue; jobs that wait stay stored, the one that runs fails. May be called twice."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._worker.close()
        with self._changed:
            if self._running is not None:
                self._append(self._running, _CLOSED)
            self._store.close()
            self._lock.release()

    def _enqueue(self, job_id: str, request: GenerationRequest, owner: str, folder: Path) -> Job:
        job = Job(id=job_id, owner=owner, request=request, state="queued", created=time.time(), started=None,
                  ended=None, folder=folder)  # fmt: skip
        with self._changed:
            self._check_open()
            self._store.add(job, self._lock.name)
            self._waiting.append(job_id)
            self._announce_positions([job_id])
            self._dispatch()
            return self._store.job(job_id)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StudioError("the studio is shutting down and", "takes no more requests", "start it again")

    def _follow(self, job_id: str, after: int) -> Iterator[tuple[int, Event]]:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                has_ended = self._store.job(job_id).has_ended  # asked first: events that come between are then seen
                fresh = self._store.events(job_id, after)
                if not fresh and not has_ended:
                    self._changed.wait(_POLL_SECONDS)
            for after, event in fresh:
                yield after, event
            if has_ended:
                return

    def _record(self, job_id: str, event: Event) -> None:
        """Stores what the worker reports; its final event makes room for the next job."""
        with self._changed:
            if self._is_closed or job_id != self._running:
                return
            self._append(job_id, event)
            if event.is_final:
                self._running = None
                self._dispatch()

    def _dispatch(self) -> None:
        """Gives the worker the next job, if it has none. The lock is held."""
        while self._running is None and self._waiting:
            job_id = self._waiting.pop(0)
            if not self._store.start(job_id):
                continue
            self._running, job = job_id, self._store.job(job_id)
            self._announce_positions(self._waiting)
            try:
                self._worker.run(job_id, job.request, job.folder)
            except OSError as error:
                self._running = None
                self._append(job_id, Failed(f"The worker could not be started: {error}", "Free memory, then try again"))

    def _announce_positions(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            self._append(job_id, Queued(self._waiting.index(job_id)))

    def _append(self, job_id: str, event: Event) -> None:
        try:
            self._store.append(job_id, event)
        except sqlite3.Error:
            logger.exception("An event of job %s could not be stored", job_id)
        self._changed.notify_all()

    def _take_over(self) -> None:
        """Takes up the jobs of engines that are no more: what waited waits again, what ran has failed."""
        with self._changed:
            for engine in self._store.engines_at_work():
                with self._lock.of_dead_engine(engine) as is_dead:
                    for job in self._store.unfinished(engine) if is_dead else []:
                        self._adopt(job)
            self._announce_positions(self._waiting)
            self._dispatch()

    def _adopt(self, job: Job) -> None:
        if job.state == "running":
            self._append(job.id, _DIED)
        else:
            self._store.hand_over(job.id, self._lock.name)
            self._waiting.append(job.id)


def _first_preset(model: str | None) -> Preset:
    """The preset to load first: the one made for this checkpoint, else the first of all."""
    presets = list_presets()
    return next((preset for preset in presets if model in (preset.model, preset.model_source)), presets[0])


def _written(request: GenerationRequest, images: dict[str, Image], folder: Path) -> GenerationRequest:
    """Makes the job's folder with its images and `request.json`; the request then names those images."""
    folder.mkdir()
    for name, image in images.items():
        image.save(folder / f"{name}.png", compress_level=1)
    request = request.changed(**{name: str(folder / f"{name}.png") for name in images})
    (folder / "request.json").write_text(json.dumps(request.to_json(), indent=2, ensure_ascii=False), "utf-8")
    return request


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataFolderError(f"{folder} cannot be made ({error.strerror}):", "the data folder must be writable",
                              "choose another with --data-dir") from error  # fmt: skip
    return folder
