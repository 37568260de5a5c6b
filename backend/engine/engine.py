"""Queue requests, run them in workers, and store their events. Imports neither jax nor torch."""

import functools
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.catalog.models import Models, required_sources
from backend.catalog.weights_here import check_weights_installed, has_weights
from backend.checkpoints.upscalers import check_upscaler_exists, count_weights, list_upscalers
from backend.cluster.nodes import Cluster
from backend.engine.cleaning import Cleaner
from backend.engine.disk import Shortage, capacity_shortage, find_shortage, needed_bytes
from backend.engine.dispatcher import Dispatcher, make_queue_entry
from backend.engine.estimate import Estimate
from backend.engine.event_log import EventLog
from backend.engine.folder import move_request_files, write_request_steps
from backend.engine.history import History
from backend.engine.job import Job, ListedJob, new_job_id
from backend.engine.keys import Keys
from backend.engine.library import Library
from backend.engine.lock import EngineLock
from backend.engine.moving_projects import export_project, import_project
from backend.engine.notifications import Notifications
from backend.engine.options import EngineOptions
from backend.engine.projects import Project
from backend.engine.scheduling import QueueLimits, place_for_new_job
from backend.engine.store import Store
from backend.engine.stored_requests import RequestMemo
from backend.engine.storyboards import add_finished_job, copy_shots, cut_storyboard, regenerate_from
from backend.engine.summary import RequestSummary
from backend.engine.timings import Timings
from backend.errors import DataFolderError, JobHasBegun, RequestError, StudioError
from backend.media.sandbox import Requester, SandboxPool, Steps
from backend.schemas.events import Event, Finished, Interrupted
from backend.schemas.prompt_cues import Cue, check_cue
from backend.schemas.request import GenerationRequest, check_current_limits, find_preset
from backend.schemas.shape import UPSCALING, Shape
from backend.schemas.shots import needs_only_cutting
from backend.schemas.upscaling import upscaler_name
from backend.schemas.worker import CacheAction, Device, WorkerFacts, WorkerStatus, WorkerView, summarize_status
from backend.settings import from_environment
from backend.workers.stale_processes import kill_stale_workers
from presets import Preset

# After its start, the engine reads the last `_MOST_RECENT_JOBS` jobs. Idle workers prepare for at most `_MOST_PREPARED_SHAPES`
# shapes of these jobs.
_MOST_RECENT_JOBS, _MOST_PREPARED_SHAPES = 40, 3

__all__ = ["Engine", "Job", "WorkerStatus"]


class Engine:
    """Runs requests in worker processes, one at a time per worker. Safe to use from several threads.

    Jobs of an ended engine and jobs whose worker died are requeued. They continue from their last stored step.
    `backend.engine.recovery` decides when a job is held or fails instead.
    """

    def __init__(self, data_dir: Path, model: str | None = None, **choices: Any):
        """Open the data folder and start the workers. `choices` are the fields of `EngineOptions`.

        Raises: DataFolderError; RequestError or StudioError if the cluster cannot be joined.
        """
        options = EngineOptions(model=model, **choices)
        self._cluster = Cluster(options.cluster) if options.cluster is not None else None
        self.settings = settings = from_environment(data_dir)
        self._model, self._touches = model, 0
        self._runs = _make_folder(settings.runs_dir)
        self._store = Store(settings.data_dir / "jobs.sqlite3")
        self._lock = EngineLock(_make_folder(settings.engines_dir))
        # While another engine runs, the stored paths are kept, because that engine may use another path to this data folder.
        if self._lock.is_alone():
            self._store.update_job_folders(self._runs)
        self._notifications = Notifications(options.notify, self._store, Keys(settings.data_dir))
        self.history = History(self._store.samples, settings.data_dir, self._count_jobs, self._devices_now)
        self._event_log = EventLog(
            self._store, on_event=(self._notifications.ended, self.history.record_step, self._measure_ended_job)
        )
        self._memo = RequestMemo(self._store.job)
        self._timings = Timings(self._store, functools.partial(count_weights, folder=settings.upscalers_dir))
        self.library = Library(self._store, on_delete=lambda owner: self.cleaner.trim_bin(owner))
        self.user_presets, self.projects = self._store.user_presets, self._store.projects
        self.cleaner = Cleaner(settings, self._store, self.user_presets, self._lock, options.limits, on_removal=self.touch)
        self.sandbox = SandboxPool()
        plan = options.plan(settings)
        self._dispatcher = Dispatcher(
            options.plans(plan),
            self._event_log,
            self._store,
            self._lock,
            self._runs,
            shape_of=lambda job: self.shape(job.request),
            on_finished=self._timings.record_run,
            load_seconds=self._timings.load_seconds,
            has_local_weights=self._has_local_weights,
        )
        self.models = Models(settings, in_use=self._sources_in_use, devices=self._devices, on_change=self.touch)
        kill_stale_workers(settings.data_dir)
        if options.start_worker:
            self._dispatcher.pool.start()
        if self._cluster is not None:
            self._cluster.start(self._dispatcher.pool, plan)
        if options.resume:
            self.cleaner.start()
        recent_requests = self._recent_requests() if options.resume and options.warm_up and options.start_worker else ()
        self._dispatcher.start(resume=options.resume, recent_requests=recent_requests)
        if options.resume:
            self.history.start()

    def submit(
        self,
        request: GenerationRequest,
        owner: str = "local",
        queue_limits: QueueLimits | None = None,
        *,
        may_download: bool = False,
        again: tuple[str, int] | None = None,
    ) -> Job:
        """Store the request with copies of its inputs, then queue it.

        If all shots of a storyboard are finished, the storyboard is assembled immediately, without a worker.
        `may_download` is True for the operator.
        `again` is the id of a storyboard's job and the number (from 1) of the first shot that this request regenerates.
        Without `queue_limits` the queue is not limited.

        After an error nothing remains on the disk.

        Raises:
            RequestError: if the preset refuses a value, a needed download is not allowed, or the video exceeds the whole disk.
            ImageError: if an image cannot be used.
            Busy: if too many images are being opened.
            QueueFull: if the queue has no place for this owner.
            DataFolderError: if the data folder cannot be written.
            JobNotFound: if the storyboard of `again` does not exist.
        """
        steps = self.submit_steps(request, owner, queue_limits, may_download=may_download, again=again)
        return self.sandbox.run_steps(steps, Requester(owner=owner, address=queue_limits.address if queue_limits else ""))

    def job(self, job_id: str) -> Job:
        """Return the job with its whole request. Raises: JobNotFound."""
        return self._store.job(job_id)

    def jobs(self, owner: str | None = None, *, most: int | None = None, seed: int | None = None) -> list[Job]:
        """Return all jobs, or the jobs of one owner or with one seed, newest first. `most` limits their number."""
        return self._store.jobs(owner, most=most, seed=seed)

    def events(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Yield the events with a sequence number above `after`, then new events as they are stored.

        Ends after the final event, or when the engine closes. Raises: JobNotFound, at the call.
        """
        self._store.job(job_id)
        return self._event_log.follow_events(job_id, after)

    def queue_position(self, job_id: str) -> int | None:
        """Return the number of waiting jobs before this job, 0 for the next job. None if this job runs or has ended."""
        return next((place for place, entry in enumerate(self._dispatcher.waiting()) if entry.job_id == job_id), None)

    def is_held(self, job_id: str) -> bool:
        """Return whether the job waits until a visitor resumes it."""
        return any(entry.job_id == job_id and entry.is_held for entry in self._dispatcher.waiting())

    def waiting_job_ids(self) -> list[str]:
        """Return the ids of the waiting jobs in the order in which they will run."""
        return [entry.job_id for entry in self._dispatcher.waiting()]

    def disk_shortage(self, owner: str | None = None) -> Shortage | None:
        """Return the shortage of the first job that waits for disk space, or None. Without an owner, all jobs are searched."""
        return self._dispatcher.find_shortage(owner)

    def changes(self) -> int:
        """Return a number that increases with each change of a job."""
        return self._event_log.count()

    def wait_for_change(self, after: int, seconds: float) -> int | None:
        """Wait up to `seconds` until `changes()` differs from `after`. Return the number, None if the engine is closed."""
        return self._event_log.wait(after, seconds)

    def touch(self) -> None:
        """Report a change outside the queue, so that all pages refresh."""
        self._touches += 1
        self._event_log.touch()

    def touches(self) -> int:
        """Return the number of calls of `touch`."""
        return self._touches

    def last_event(self, job_id: str) -> Event | None:
        """Return the job's newest event."""
        return self._store.last_event(job_id)

    def last_progress(self, job_id: str) -> Event | None:
        """Return the job's newest event that contains no video.

        Lists use this event, because an event with a video contains the whole request.
        """
        return self._store.last_progress(job_id)

    def interruptions(self, job_id: str) -> list[Interrupted]:
        """Return the interruptions of the job, oldest first."""
        return self._store.interruptions(job_id)

    def move(self, job_id: str, index: int) -> None:
        """Move a waiting job to place `index` (from 0) among its owner's jobs. Do nothing if the job no longer waits."""
        self._dispatcher.move(job_id, index)

    def revise(self, job_id: str, request: GenerationRequest, *, may_download: bool = False) -> Job:
        """Replace the request of a waiting job. `may_download` is True for the operator.

        After an error nothing has changed.

        Raises:
            JobHasBegun: if the job no longer waits.
            RequestError: if a needed download is not allowed.
            ImageError: if an image cannot be used.
            Busy: if too many images are being opened.
        """
        return self.sandbox.run_steps(self.revise_steps(job_id, request, may_download=may_download))

    def has_weights(self, preset: Preset) -> bool:
        """Return whether this machine has all files that the preset needs."""
        return has_weights(preset, self._model)

    def upscalers(self) -> list[str]:
        """Return the names of the installed upscalers, the default first."""
        return list_upscalers(self.settings.upscalers_dir)

    def shape(self, request: GenerationRequest) -> Shape:
        """Return the shape of the request, which selects the programs to compile."""
        return Shape.from_request(request, self._model)

    def estimate(self, request: GenerationRequest) -> Estimate | None:
        """Estimate the request's seconds from this machine's earlier videos, else from its TPUs' published peak performance.

        Return None without earlier videos and without TPUs.
        """
        shape = self.shape(request)
        is_kept = shape.model in self._dispatcher.pool.kept_models()
        return self._timings.estimate(request, shape, self._representative_worker(), self.is_warm(shape), is_kept)

    def shape_of_job(self, job: ListedJob) -> Shape:
        """Return `shape` of the job's request. The request is parsed once."""
        return self._memo.value(job, "shape", self.shape)

    def estimate_job(self, job: ListedJob) -> Estimate | None:
        """Return `estimate` of the job's request. The request is parsed again only if the estimate may have changed."""
        shape, worker = self.shape_of_job(job), self._representative_worker()
        is_warm, is_kept = self.is_warm(shape), shape.model in self._dispatcher.pool.kept_models()
        name = "estimate", is_warm, is_kept, worker.device_kind, len(worker.facts.devices), self._timings.count
        return self._memo.value(job, name, self.estimate)

    def prepare_for(self, request: GenerationRequest) -> None:
        """Let an idle worker load the model and compile the programs of this request, if that needs no download."""
        if self._may_prepare(request):
            self._dispatcher.prepare_for(request, self.shape(request))

    def is_warm(self, shape: Shape) -> bool:
        """Return whether a worker has compiled all programs of this shape. Always True for upscaling, which compiles quickly."""
        return shape.task == UPSCALING or any(shape in worker.facts.warm for worker in self.workers())

    def cancel(self, job_id: str) -> None:
        """Cancel a waiting or running job. Do nothing to an ended job.

        Raises: JobNotFound, StudioError for a job of another engine on the same data folder.
        """
        self._store.job(job_id)
        self._dispatcher.cancel(job_id)

    def steer_live(self, job_id: str, *, prompt: str | None = None, action: str | None = None) -> None:
        """Change the prompt or the action of a live video from its next block on.

        Raises: JobNotFound, RequestError if the video is not running, or if its model does not support the change.
        """
        job = self._store.job(job_id)
        if job.state != "running" or not job.request.is_open:
            raise RequestError("this job", "must be a running live video", "start a live video first")
        cue = Cue(block=0, prompt=prompt, action=action)
        check_cue(cue, find_preset(job.request.preset))
        self._dispatcher.pool.send_cue(job_id, cue)

    def export_project_steps(self, project: Project, path: Path) -> Steps[int]:
        """Return `Steps` that write a project to one file and return the number of written videos. See `submit_steps`.

        Raises: RequestError, Busy, OSError.
        """
        return export_project(self._store, project, path)

    def import_project_steps(
        self, archive: Path, folder: Path, owner: str, *, is_limited: bool = False
    ) -> Steps[tuple[Project, int]]:
        """Return `Steps` that import a project file as a new project of the owner. See `moving_projects.import_project`.

        With `is_limited`, the file must fit into the visitor's quota. Raises: RequestError, and the errors of `import_project`.
        """
        self._check_open()
        if is_limited:
            self.cleaner.check_visitor_quota(owner, archive.stat().st_size)
        project = yield from import_project(self._store, self.projects, self._runs, self._lock.name, owner, archive, folder)
        self.touch()
        return project

    def notify_operator(self, job_id: str) -> None:
        """Notify the operator when this job ends, if the server has an address for notifications."""
        self._store.request_notification(job_id)

    def resume(self, job_id: str) -> None:
        """Release a held job. Do nothing to other jobs. Raises: JobNotFound."""
        self._store.job(job_id)
        self._dispatcher.resume(job_id)

    def remove_model(self, source: str) -> int:
        """Delete a checkpoint or a LoRA file from this machine. See `Models.remove`. No job can be queued meanwhile."""
        with self._event_log.changed:
            return self.models.remove(source)

    def keep_model(self, worker: str, model: str, how: CacheAction) -> None:
        """Keep a cached model of this worker loaded, stop keeping it loaded, or unload it. A model in use is not unloaded."""
        self._dispatcher.pool.manage_model(worker, model, how)

    def workers(self) -> tuple[WorkerView, ...]:
        """Return the state, devices, model, log and current job of each worker, always in the same order."""
        return self._dispatcher.pool.workers()

    def worker_status(self, job_id: str | None = None) -> WorkerStatus:
        """Return the status of the job's worker, or a summary of all workers, which is "failed" only if all have failed."""
        worker = self._dispatcher.pool.worker_of(job_id) if job_id else None
        return worker.status if worker else summarize_status(self.workers())

    def close(self) -> None:
        """Stop the workers and the queue. Waiting and running jobs remain stored for the next engine. May be called twice."""
        with self._event_log.changed:
            if self._event_log.is_closed:
                return
            self._event_log.close()
        self.cleaner.close()
        self.models.close()
        self.sandbox.close()
        if self._cluster is not None:
            self._cluster.close()
        self._dispatcher.close()
        self._notifications.close()
        self.history.close()
        if self._cluster is not None:
            self._cluster.disconnect()
        with self._event_log.changed:
            self._store.close()
            self._lock.release()

    def check_queue_limits(self, owner: str, queue_limits: QueueLimits | None, more: int = 1) -> None:
        """Check that the queue may take `more` videos of this owner. Raises: QueueFull."""
        if queue_limits is not None:
            queue_limits.check(self._dispatcher.waiting(), owner, more)

    def submit_steps(
        self,
        request: GenerationRequest,
        owner: str,
        queue_limits: QueueLimits | None,
        *,
        may_download: bool = False,
        again: tuple[str, int] | None = None,
    ) -> Steps[Job]:
        """Return the work of `submit` as `Steps`, a generator that yields its sandbox calls.

        Callers in an event loop use this generator, so that they can await each call.
        """
        self._check(request, may_download)
        keep = None
        if again is not None:
            story, first = self._store.job(again[0]), again[1]
            request, keep = regenerate_from(story, first, request), functools.partial(copy_shots, story.folder, count=first - 1)
        self._check_open()
        self.check_queue_limits(owner, queue_limits)
        if queue_limits is not None:
            self.cleaner.check_visitor_quota(owner)
        job_id = new_job_id()
        folder = self._runs / job_id
        try:
            folder.mkdir(parents=True)
            request = yield from write_request_steps(request, folder)
            if needs_only_cutting(request):
                film = yield from cut_storyboard(request, folder)
                return self._add_storyboard(job_id, owner, film)
            self._check_open()
            if keep is not None:
                keep(folder)
            return self._enqueue(job_id, request, owner, folder, queue_limits)
        except (OSError, sqlite3.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise DataFolderError(
                f"{folder.parent} cannot be written ({error}):",
                "it must be a writable folder with free space",
                "free disk space, or choose another folder with --data-dir",
            ) from error
        except (StudioError, GeneratorExit):
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def revise_steps(self, job_id: str, request: GenerationRequest, *, may_download: bool = False) -> Steps[Job]:
        """Return the work of `revise` as `Steps`, a generator that yields its sandbox calls. See `submit_steps`.

        The new inputs are written to a separate folder. They are moved to the job's folder if the job still waits.
        """
        self._check(request, may_download)
        job = self._store.job(job_id)
        with tempfile.TemporaryDirectory(prefix=".revised-", dir=job.folder) as name:
            new = yield from write_request_steps(request, Path(name))
            with self._event_log.changed:
                if job.id not in self.waiting_job_ids():
                    raise JobHasBegun(
                        "this video", "can be changed only while it waits, and it has started", "stop it, or queue another"
                    )
                request = move_request_files(new, Path(name), job.folder)
                self._store.replace_waiting_request(job.id, request)
                self._dispatcher.update_request(job.id, request, self.shape(request))
                return self._store.job(job.id)

    def _add_storyboard(self, job_id: str, owner: str, film: Finished) -> Job:
        with self._event_log.changed:
            self._check_open()
            add_finished_job(self._store, job_id, owner, film, self._lock.name, self.projects.current(owner))
            self._notifications.ended(job_id, film)
            self._event_log.touch()
            return self._store.job(job_id)

    def _enqueue(
        self, job_id: str, request: GenerationRequest, owner: str, folder: Path, queue_limits: QueueLimits | None
    ) -> Job:
        now, shape = time.time(), self.shape(request)
        with self._event_log.changed:
            self._check_open()
            self.check_queue_limits(owner, queue_limits)  # checked again, because other jobs may have been queued meanwhile
            place = place_for_new_job(self._dispatcher.waiting(), owner, shape, now)
            job = Job(
                id=job_id,
                owner=owner,
                summary=RequestSummary.from_request(request),
                request=request,
                state="queued",
                created=now,
                started=None,
                ended=None,
                folder=folder,
                place=place,
                project=self.projects.current(owner),
            )
            self._store.add(job, self._lock.name)
            address = queue_limits.address if queue_limits else ""
            self._dispatcher.add(make_queue_entry(job, shape, address))
            return self._store.job(job_id)

    def _recent_requests(self) -> list[tuple[GenerationRequest, Shape]]:
        """Return one request per shape of the last videos, newest first. Requests that need a download are left out."""
        made: dict[Shape, GenerationRequest] = {}
        for request in self._store.generated_requests(_MOST_RECENT_JOBS):
            if self._may_prepare(request):
                made.setdefault(self.shape(request), request)
        return [(request, shape) for shape, request in made.items()][:_MOST_PREPARED_SHAPES]

    def _has_local_weights(self, preset: str) -> bool:
        """Return whether this preset exists and needs no download."""
        try:
            return self.has_weights(find_preset(preset))
        except RequestError:
            return False

    def _may_prepare(self, request: GenerationRequest) -> bool:
        """Return whether a worker may load and compile ahead for this request."""
        try:
            check_current_limits(request)
        except RequestError:
            return False
        return _can_be_prepared(request) and self._has_local_weights(request.preset)

    def _check(self, request: GenerationRequest, may_download: bool) -> None:
        """Check a request before it is queued. Raises: RequestError."""
        check_current_limits(request)
        lacking = capacity_shortage(self._runs, needed_bytes(request))
        if lacking is not None:
            what = "this video may need more than the whole disk"
            raise RequestError(what, f"({lacking.in_all})", "make it smaller, shorter or of fewer steps")
        if request.upscale:
            check_upscaler_exists(upscaler_name(request), self.settings.upscalers_dir, may_download)
            self._check_upscaling_space(request)
        if not may_download and not needs_only_cutting(request):
            check_weights_installed(request, self._model)

    def _check_upscaling_space(self, request: GenerationRequest) -> None:
        """Check that the disk has space for an upscaled video, so that the job does not wait for space. Raises: RequestError."""
        lacking = find_shortage(self._runs, needed_bytes(request))
        if lacking is not None:
            what = f"this video, upscaled {request.upscale} times,"
            raise RequestError(what, f"may need more than the disk has ({lacking})", "choose a smaller scale, or a shorter video")

    def _measure_ended_job(self, job_id: str, event: Event) -> None:
        if event.is_final:
            self._store.measure_folder(job_id)

    def _check_open(self) -> None:
        if self._event_log.is_closed:
            raise StudioError("the studio is shutting down and", "accepts no more requests", "start it again")

    def _sources_in_use(self) -> set[str]:
        """Return the checkpoints and LoRA files of all jobs that have not ended."""
        own = {self._model} if self._model else set()
        unended = self.library.unended(None)
        return own.union(*(self._memo.value(job, "sources", required_sources) for job in unended))

    def _count_jobs(self) -> tuple[int, int]:
        """Return the number of waiting videos and the number of running videos."""
        return len(self._dispatcher.waiting()), sum(worker.job_id is not None for worker in self.workers())

    def _devices_now(self) -> list[Device]:
        """Return the devices of all workers."""
        return [device for worker in self.workers() for device in worker.facts.devices]

    def _devices(self) -> tuple[Device, ...]:
        return self._representative_worker().facts.devices

    def _representative_worker(self) -> WorkerView:
        """Return the first worker with known devices, else the first worker, else a `WorkerView` without values."""
        workers = self.workers()
        nobody = WorkerView(name="", status=summarize_status(()), facts=WorkerFacts())
        return next((worker for worker in workers if worker.facts.devices), next(iter(workers), nobody))


def _can_be_prepared(request: GenerationRequest) -> bool:
    """Return whether a worker can prepare for the request: it is not a storyboard, a live video or an upscaling."""
    return not (request.shots or request.is_open or request.finished_video)


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataFolderError(
            f"{folder} cannot be created ({error.strerror}):",
            "the data folder must be writable",
            "choose another with --data-dir",
        ) from error
    return folder
