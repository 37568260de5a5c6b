"""Queue requests, run them in workers, and store their events. Imports neither jax nor torch."""

import functools
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.catalog.measured_ratios import add_measured_ratios
from backend.catalog.models import Models, required_sources
from backend.catalog.weights_here import check_weights_installed, has_weights
from backend.checkpoints.upscalers import check_upscaler_exists, count_weights, list_upscalers
from backend.engine.cleaning import Cleaner
from backend.engine.disk import find_shortage, needed_bytes
from backend.engine.dispatcher import Dispatcher, make_queue_entry, needed_preset
from backend.engine.estimate import Estimates, Timings
from backend.engine.event_log import EventLog
from backend.engine.folder import move_request_files, write_inputs_steps, write_request_steps
from backend.engine.history import History
from backend.engine.instant import InstantDraft, choose_preset, draft_request
from backend.engine.job import Job, new_job_id
from backend.engine.keys import Keys
from backend.engine.lock import EngineLock
from backend.engine.moving_projects import export_project, import_project
from backend.engine.notifications import Notifications
from backend.engine.options import EngineOptions
from backend.engine.projects import Project
from backend.engine.scheduling import QueueLimits, place_for_new_job
from backend.engine.store import Store
from backend.engine.stored_requests import RequestMemo
from backend.engine.storyboards import add_finished_job, copy_shots, cut_storyboard, regenerate_from
from backend.engine.webhooks import Webhooks
from backend.errors import DataFolderError, JobHasBegun, RequestError, StudioError
from backend.media.sandbox import Requester, SandboxPool, Steps
from backend.schemas.prompt_cues import Cue, check_cue
from backend.schemas.request import GenerationRequest, check_current_limits
from backend.schemas.settings import find_preset
from backend.schemas.shape import Shape
from backend.schemas.shots import needs_only_cutting
from backend.schemas.upscaling import upscaler_name
from backend.schemas.worker import WorkerStatus
from backend.settings import from_environment
from backend.worker_pool.nodes import Cluster
from backend.workers.process import kill_stale_workers
from presets import Preset, list_variants

# After its start, the engine reads the requests of the last `_MOST_RECENT_JOBS` videos. Idle workers compile the programs of at
# most `_MOST_PREPARED_SHAPES` different shapes (`Shape`) among these requests.
_MOST_RECENT_JOBS, _MOST_PREPARED_SHAPES = 40, 3

__all__ = ["Engine", "Job", "WorkerStatus"]


class Engine:
    """Runs requests in worker processes, one at a time per worker. Safe to use from several threads.

    Interrupted jobs are requeued, and continue from their last stored step (`backend.engine.recovery`).
    """

    def __init__(self, data_dir: Path, model: str | None = None, **choices: Any):
        """Open the data folder and start the workers. `choices` are the fields of `EngineOptions`.

        Raises: DataFolderError; RequestError or StudioError if the cluster cannot be joined.
        """
        options = EngineOptions(model=model, **choices)
        self._cluster = Cluster(options.cluster) if options.cluster is not None else None
        self.settings = settings = from_environment(data_dir)
        self._model = model
        self.num_outside_changes = 0  # number of calls of `count_change`
        self._runs = _make_folder(settings.runs_dir)
        self._store = store = Store(settings.data_dir / "jobs.sqlite3")
        self.jobs, self.events, self.library = store.jobs, store.events, store.library
        self.user_presets, self.projects = store.user_presets, store.projects
        self._lock = EngineLock(_make_folder(settings.engines_dir))
        # While another engine runs, the stored paths are kept, because that engine may use another path to this data folder.
        if self._lock.is_alone():
            store.jobs.update_job_folders(self._runs)
            shutil.rmtree(settings.drafts_dir, ignore_errors=True)
        keys = Keys(settings.data_dir)
        self._notifications = Notifications(options.notify, store.jobs, keys)
        self.webhooks = Webhooks(options.webhooks, store.jobs, keys, self._runs)
        self.history = History(
            store.tables,
            settings.data_dir,
            counts=lambda: (len(self.queue.waiting()), len(self.queue.running)),
            devices=lambda: [device for worker in self.pool.workers() for device in worker.facts.devices],
        )
        on_event = (self._notifications.notify_end, self.webhooks.notify_end, self.history.record_step)
        self.event_log = EventLog(store, on_event)
        self._memo = RequestMemo(store.jobs.find)
        timings = Timings(store.runs, functools.partial(count_weights, folder=settings.upscalers_dir))
        self.cleaner = Cleaner(settings, store, self._lock, options.limits, on_removal=self.count_change)
        self.library.on_delete = self.cleaner.trim_bin
        self.sandbox = SandboxPool()
        plan = options.plan(settings)
        self.first_preset = plan.preset  # the name of the preset whose model the workers load first
        self.queue = Dispatcher(
            options.plans(plan),
            self.event_log,
            store,
            self._lock,
            self._runs,
            shape_of=lambda job: self.estimates.shape(job.request),
            on_finished=timings.record_run,
            load_seconds=timings.load_seconds,
            has_local_weights=self._has_local_weights,
        )
        self.pool = self.queue.pool
        self.estimates = Estimates(timings, self.pool, self._memo, model, settings.magnitudes_dir)
        self.models = Models(
            settings,
            in_use=self._sources_in_use,
            devices=lambda: self.pool.representative_worker().facts.devices,
            on_change=self.count_change,
        )
        kill_stale_workers(settings.data_dir)
        if options.start_worker:
            self.pool.start()
        if self._cluster is not None:
            self._cluster.start(self.pool, plan)
        if options.resume:
            self.cleaner.start()
        recent_requests = self._recent_requests() if options.resume and options.warm_up and options.start_worker else ()
        self.queue.start(resume=options.resume, recent_requests=recent_requests)
        if options.resume:
            self.history.start()
            self.webhooks.start()

    def submit(
        self,
        request: GenerationRequest,
        owner: str = "local",
        queue_limits: QueueLimits | None = None,
        *,
        may_download: bool = False,
        regenerated_shot: tuple[str, int] | None = None,
    ) -> Job:
        """Store the request with copies of its inputs, then queue it. After an error nothing remains on the disk.

        Without `queue_limits` the queue is not limited. If all shots of a storyboard are finished, it is assembled immediately,
        without a worker. `may_download` is for the operator. `regenerated_shot` is a storyboard's job and the number, from 1, of
        the first regenerated shot.

        Raises: RequestError, ImageError, Busy if too many images are being opened, QueueFull, DataFolderError, JobNotFound.
        """
        steps = self.submit_steps(request, owner, queue_limits, may_download=may_download, regenerated_shot=regenerated_shot)
        return self.sandbox.run_steps(steps, Requester(owner=owner, address=queue_limits.address if queue_limits else ""))

    def count_change(self) -> None:
        """Report a change outside the queue, so that all pages refresh."""
        self.num_outside_changes += 1
        self.event_log.count_change()

    def has_weights(self, preset: Preset) -> bool:
        return has_weights(preset, self._model)

    def upscalers(self) -> list[str]:
        """Return the names of the installed upscalers, the default first."""
        return list_upscalers(self.settings.upscalers_dir)

    def prepare_for(self, request: GenerationRequest) -> None:
        """Let an idle worker load the model and compile the programs of this request, if that needs no download."""
        if self._may_prepare(request):
            self.queue.prepare_for(request, self.estimates.shape(request))

    def steer_live(self, job_id: str, *, prompt: str | None = None, action: str | None = None) -> None:
        """Change the prompt or action of a live video from its next block on. Raises: JobNotFound, RequestError."""
        job = self.jobs.find(job_id)
        if job.state != "running" or not job.request.is_open:
            raise RequestError("this job", "must be a running live video", "start a live video first")
        cue = Cue(block=0, prompt=prompt, action=action)
        check_cue(cue, job.request.resolved_preset)
        self.queue.send_cue(job_id, cue)

    def export_project_steps(self, project: Project, path: Path) -> Steps[int]:
        """Return a generator that writes a project to one file and returns the number of videos. See `export_project`."""
        return export_project(self._store, project, path)

    def import_project_steps(
        self, archive: Path, folder: Path, owner: str, *, is_limited: bool = False
    ) -> Steps[tuple[Project, int]]:
        """Return a generator that imports a project file as a new project of the owner. See `import_project`.

        With `is_limited`, the file must fit into the visitor's quota.
        """
        self._check_open()
        if is_limited:
            self.cleaner.check_visitor_quota(owner, archive.stat().st_size)
        project = yield from import_project(self._store, self._runs, self._lock.name, owner, archive, folder)
        self.count_change()
        return project

    def remove_model(self, source: str) -> int:
        """Delete a checkpoint or a LoRA file from this machine. See `Models.remove`. No job can be queued meanwhile."""
        with self.event_log.changed:
            return self.models.remove(source)

    def close(self) -> None:
        """Stop the workers and the queue. Waiting and running jobs remain stored for the next engine. May be called twice."""
        with self.event_log.changed:
            if self.event_log.is_closed:
                return
            self.event_log.close()
        self.cleaner.close()
        self.models.downloads.close()
        self.sandbox.close()
        if self._cluster is not None:
            self._cluster.close()
        self.queue.close()
        self._notifications.close()
        self.webhooks.close()
        self.history.close()
        if self._cluster is not None:
            self._cluster.disconnect()
        with self.event_log.changed:
            self._store.close()
            self._lock.release()

    def check_queue_limits(self, owner: str, queue_limits: QueueLimits | None, more: int = 1) -> None:
        """Check that the queue may take `more` videos of this owner. Raises: QueueFull."""
        if queue_limits is not None:
            queue_limits.check(self.queue.waiting(), owner, more)

    def submit_steps(
        self,
        request: GenerationRequest,
        owner: str,
        queue_limits: QueueLimits | None,
        *,
        may_download: bool = False,
        regenerated_shot: tuple[str, int] | None = None,
    ) -> Steps[Job]:
        """Return a generator (`Steps`) that does the work of `submit`. It yields sandbox calls, which event loops must await."""
        request = add_measured_ratios(request, self.settings.magnitudes_dir)
        self._check(request, may_download)
        keep = None
        if regenerated_shot is not None:
            story, first = self.jobs.find(regenerated_shot[0]), regenerated_shot[1]
            request, keep = regenerate_from(story, first, request), functools.partial(copy_shots, story.folder, count=first - 1)
        self._check_open()
        self.check_queue_limits(owner, queue_limits)
        if queue_limits is not None:
            self.cleaner.check_visitor_quota(owner)
        folder = self._runs / new_job_id()
        try:
            folder.mkdir(parents=True)
            request = yield from write_request_steps(request, folder)
            if needs_only_cutting(request):
                film = yield from cut_storyboard(request, folder)
                with self.event_log.changed:
                    self._check_open()
                    add_finished_job(self._store, owner, film, self._lock.name, self.projects.current(owner))
                    self._notifications.notify_end(folder.name, film)
                    self.event_log.count_change()
                    return self.jobs.find(folder.name)
            self._check_open()
            if keep is not None:
                keep(folder)
            return self._enqueue(request, owner, folder, queue_limits)
        except (OSError, sqlite3.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            what = f"{folder.parent} cannot be written ({error}):"
            fix = "free disk space, or choose another folder with --data-dir"
            raise DataFolderError(what, "it must be a writable folder with free space", fix) from error
        except (StudioError, GeneratorExit):
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def draft_steps(
        self, request: GenerationRequest, owner: str, queue_limits: QueueLimits | None, can_run: Callable[[Preset], bool]
    ) -> Steps[InstantDraft]:
        """Return a generator that starts an instant draft of the request, in place of the owner's earlier draft.

        `can_run(preset)` returns whether the draft may use a preset. Raises: the errors of `submit`; Busy while drafts are
            paused, if too many drafts are in progress, or if no idle worker can load the model ahead.
        """
        self._check(request, may_download=False)
        self._check_open()
        if queue_limits is not None:
            self.cleaner.check_visitor_quota(owner)
        drafts = self.queue.drafts
        draft = drafts.reserve(owner, queue_limits.address if queue_limits else "", self.settings.drafts_dir)
        try:
            wanted = self._reduce_to_draft(request, can_run)
            if wanted.inputs():
                draft.folder.mkdir(parents=True)
                wanted = yield from write_inputs_steps(wanted, draft.folder)
            drafts.start(draft, wanted, self.estimates.shape(wanted))
        except BaseException:
            drafts.drop(draft)  # a draft that stays reserved would count towards the limits
            raise
        return draft

    def prepare_draft(self, request: GenerationRequest, can_run: Callable[[Preset], bool]) -> None:
        """Let an idle worker compile the programs of the request's instant draft, unless drafts are paused."""
        if self._may_prepare(request):
            wanted = self._reduce_to_draft(request, can_run)
            self.queue.drafts.prepare(wanted, self.estimates.shape(wanted))

    def _reduce_to_draft(self, request: GenerationRequest, can_run: Callable[[Preset], bool]) -> GenerationRequest:
        """Return the request of an instant draft, for the request's own model or a faster model that is loaded.

        If a faster model is installed but not loaded, let an idle worker load it for later drafts, if memory suffices.
        """
        others = [] if self._model else list_variants(request.preset)
        cached = self.pool.cached_models()
        fitting = [preset for preset in others if can_run(preset)]
        chosen = choose_preset(request, [preset for preset in fitting if preset.model_source in cached])
        fastest = choose_preset(request, fitting)
        if fastest != chosen:
            self.prepare_for(draft_request(request, fastest))
        return draft_request(request, chosen)

    def revise_steps(self, job_id: str, request: GenerationRequest, *, may_download: bool = False) -> Steps[Job]:
        """Return a generator that replaces the request of a waiting job. After an error nothing has changed.

        Raises: JobHasBegun if the job no longer waits; RequestError, ImageError and Busy as `submit`.
        """
        request = add_measured_ratios(request, self.settings.magnitudes_dir)
        self._check(request, may_download)
        job = self.jobs.find(job_id)
        with tempfile.TemporaryDirectory(prefix=".revised-", dir=job.folder) as name:
            new = yield from write_request_steps(request, Path(name))
            with self.event_log.changed:
                if job.id not in self.queue.waiting_job_ids():
                    rule = "can be changed only while it waits, and it has started"
                    raise JobHasBegun("this video", rule, "stop it, or queue another")
                request = move_request_files(new, Path(name), job.folder)
                self.jobs.replace_request(job.id, request)
                shape, preset = self.estimates.shape(request), needed_preset(request)
                self.queue.update_entry(job.id, shape=shape, preset=preset, needed=needed_bytes(request))
                return self.jobs.find(job.id)

    def _enqueue(self, request: GenerationRequest, owner: str, folder: Path, queue_limits: QueueLimits | None) -> Job:
        now, shape = time.time(), self.estimates.shape(request)
        with self.event_log.changed:
            self._check_open()
            self.check_queue_limits(owner, queue_limits)  # checked again, because other jobs may have been queued meanwhile
            place = place_for_new_job(self.queue.waiting(), owner, shape, now)
            job = Job.create(request, owner, folder, created=now, place=place, project=self.projects.current(owner))
            self.jobs.add(job, self._lock.name)
            self.queue.add(make_queue_entry(job, shape, queue_limits.address if queue_limits else ""))
            return self.jobs.find(job.id)

    def _recent_requests(self) -> list[tuple[GenerationRequest, Shape]]:
        """Return requests of the last videos for which a worker can compile ahead, newest first: one per `Shape`."""
        made: dict[Shape, GenerationRequest] = {}
        for request in self.jobs.generated_requests(_MOST_RECENT_JOBS):
            if self._may_prepare(request):
                made.setdefault(self.estimates.shape(request), request)
        return [(request, shape) for shape, request in made.items()][:_MOST_PREPARED_SHAPES]

    def _has_local_weights(self, preset: str) -> bool:
        try:
            return self.has_weights(find_preset(preset))
        except RequestError:
            return False

    def _may_prepare(self, request: GenerationRequest) -> bool:
        """Return whether a worker may prepare for this request. Storyboards, live videos and upscaling cannot be prepared."""
        try:
            check_current_limits(request)
        except RequestError:
            return False
        is_plain = not (request.shots or request.is_open or request.finished_video)
        return is_plain and self._has_local_weights(request.preset)

    def _check(self, request: GenerationRequest, may_download: bool) -> None:
        check_current_limits(request)
        needed = needed_bytes(request)
        if lacking := find_shortage(self._runs, needed, of_whole_disk=True):
            what = "this video may need more than the whole disk"
            raise RequestError(what, f"({lacking})", "make it smaller, shorter or of fewer steps")
        if request.upscale:
            check_upscaler_exists(upscaler_name(request), self.settings.upscalers_dir, may_download)
            if lacking := find_shortage(self._runs, needed):  # refused now, so that the job does not wait for space
                what, rule = f"this video, upscaled {request.upscale} times,", f"may need more than the disk has ({lacking})"
                raise RequestError(what, rule, "choose a smaller scale, or a shorter video")
        if not may_download and not needs_only_cutting(request):
            check_weights_installed(request, self._model)

    def _check_open(self) -> None:
        if self.event_log.is_closed:
            raise StudioError("the studio is shutting down and", "accepts no more requests", "start it again")

    def _sources_in_use(self) -> set[str]:
        own = {self._model} if self._model else set()
        unended = self.library.unended(None)
        return own.union(*(self._memo.value(job, "sources", required_sources) for job in unended))


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what, fix = f"{folder} cannot be created ({error.strerror}):", "choose another with --data-dir"
        raise DataFolderError(what, "the data folder must be writable", fix) from error
    return folder
