"""Choose a worker for each job. Workers on other machines can join and leave while other workers run."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.schemas.events import Event, Interrupted, Step, Upscaling
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.worker import CacheAction, WorkerFacts, WorkerStatus, WorkerView, summarize_status
from backend.worker_pool.supervisor import Supervisor, WorkerLost
from backend.workers.messages import ExpectModels, ManageModel, PrepareFor
from backend.workers.process import WorkerPlan


class WorkerPool:
    """Has one supervisor per worker plan. A worker's thread calls `on_event(job_id, event)` and `on_ready()`."""

    def __init__(
        self, plans: Sequence[WorkerPlan], on_event: Callable[[str, Event], None], on_ready: Callable[[], None] = lambda: None
    ):
        self._on_event, self._on_ready = on_event, on_ready
        self._lock = threading.Lock()
        self._is_closed = False
        self._workers = tuple(Supervisor(plan, self._forward_event, on_ready, self._remove) for plan in plans)
        self._ends: dict[str, float] = {}  # the expected end of each job in monotonic seconds, estimated from the job's last step

    def __len__(self) -> int:
        return len(self._workers)

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def add_worker(self, plan: WorkerPlan) -> None:
        """Start one more worker. Its name must be unique. Raises: OSError if the worker cannot be started."""
        worker = Supervisor(plan, self._forward_event, self._on_ready, self._remove)
        with self._lock:
            if self._is_closed:
                return
            worker.start()
            self._workers += (worker,)

    def remove_worker(self, name: str) -> None:
        """Remove a worker whose machine was lost or is no longer needed. Its job is interrupted."""
        for worker in self._workers:
            if worker.view().name == name:
                worker.handle_machine_loss()

    def has_idle_worker(self) -> bool:
        views = self.workers()
        fit = [view for view in views if view.is_healthy] or views
        return any(view.job_id is None for view in fit)

    def assign(self, job_id: str, request: GenerationRequest, folder: Path, shape: Shape) -> Supervisor | None:
        """Give the job to the idle worker that can start it soonest, and return this worker, or None. Raises: OSError."""
        views = [(worker, worker.view()) for worker in self._workers]
        idle = [(worker, view) for worker, view in views if view.job_id is None]
        for worker, _ in sorted(idle, key=lambda pair: _start_cost(pair[1], shape)):
            with contextlib.suppress(WorkerLost):  # the worker was lost after its view was read
                worker.run(job_id, request, folder)
                return worker
        return None

    def can_run_drafts_beside(self, num_jobs: int) -> bool:
        """Return whether drafts slow down no running job: none runs, or workers are left and all have their own devices."""
        return num_jobs == 0 or (num_jobs < len(self) and all(worker.has_own_devices for worker in self._workers))

    def assign_draft(self, job_id: str, request: GenerationRequest, folder: Path, shape: Shape) -> Supervisor | None:
        """Give the instant draft to a ready worker with its programs, and return this worker. None if no such worker exists.

        A worker that cannot compile ahead needs only the model.
        """
        for worker in self.ready_workers():
            facts = worker.view().facts
            if shape in facts.warm or (not facts.can_prepare and facts.model == shape.model):
                with contextlib.suppress(WorkerLost):
                    worker.run(job_id, request, folder, is_draft=True)
                    return worker
        return None

    def expect_models(self, models: Sequence[str], preset: str | None = None) -> None:
        """Tell the workers which checkpoints' models the queued jobs need, the next job's model first.

        If no worker has the model of `preset`, the worker whose job will end first loads the model ahead.
        """
        fetcher = None
        if preset is not None and models[0] not in self.cached_models():
            fetcher = min(self._workers, key=lambda worker: self._ends.get(worker.view().job_id, math.inf), default=None)
        for worker in self._workers:
            worker.send(ExpectModels(models=list(models), preset=preset if worker is fetcher else None))

    def prepare_for(self, request: GenerationRequest, shape: Shape) -> None:
        """Let the idle worker that needs the least time for it prepare for this request."""
        if ready := self.ready_workers():
            min(ready, key=lambda worker: _start_cost(worker.view(), shape)).send(PrepareFor(request=request))

    def ready_workers(self) -> list[Supervisor]:
        views = ((worker, worker.view()) for worker in self._workers)
        return [worker for worker, view in views if view.job_id is None and view.status.state == "ready"]

    def manage_model(self, name: str, model: str, how: CacheAction) -> None:
        """Keep a cached model of this worker loaded, stop keeping it loaded, or unload it."""
        for worker in self._workers:
            if worker.view().name == name:
                worker.send(ManageModel(model=model, how=how))

    def cached_models(self) -> frozenset[str]:
        facts = [view.facts for view in self.workers()]
        used = {one.model for one in facts if one.model is not None}
        return frozenset(used.union(model.model for one in facts for model in one.cached_models))

    def is_busy_worker_faster(self, model: str, load_seconds: float) -> bool:
        """Return whether no idle worker has this model, and a busy worker that has it will be idle within `load_seconds`."""
        views = [view for view in self.workers() if view.is_healthy]
        having_model = [view for view in views if any(kept.model == model for kept in view.facts.cached_models)]
        if not having_model or any(view.job_id is None for view in having_model):
            return False
        now = time.monotonic()
        return min(self._ends.get(view.job_id, math.inf) - now for view in having_model) < load_seconds

    def workers(self) -> tuple[WorkerView, ...]:
        return tuple(worker.view() for worker in self._workers)

    def representative_worker(self) -> WorkerView:
        """Return the first worker with known devices, else the first worker, else a `WorkerView` without values."""
        workers = self.workers()
        nobody = WorkerView(name="", status=summarize_status(()), facts=WorkerFacts())
        return next((worker for worker in workers if worker.facts.devices), next(iter(workers), nobody))

    def status(self, job_id: str | None = None) -> WorkerStatus:
        """Return the status of the job's worker, or a summary of all workers, which is "failed" only if all have failed."""
        workers = self.workers()
        running = next((worker.status for worker in workers if job_id is not None and worker.job_id == job_id), None)
        return running or summarize_status(workers)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        threads = [threading.Thread(target=worker.close, name="close") for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _remove(self, lost: Supervisor) -> None:
        with self._lock:
            self._workers = tuple(worker for worker in self._workers if worker is not lost)

    def _forward_event(self, job_id: str, event: Event) -> None:
        if isinstance(event, Step | Upscaling):
            self._ends[job_id] = time.monotonic() + event.seconds_left
        elif isinstance(event, Interrupted) or event.is_final:
            self._ends.pop(job_id, None)
        self._on_event(job_id, event)


def _start_cost(view: WorkerView, shape: Shape) -> tuple[bool, bool, bool, bool, int]:
    """Return a sort key for idle workers: the smallest key needs the least time to start a job of this shape."""
    facts = view.facts
    kept = next((model for model in facts.cached_models if model.model == shape.model), None)
    is_here = kept is not None or facts.model == shape.model
    is_on_host = kept is not None and kept.host_bytes > 0
    return not view.is_healthy, not is_here, is_on_host, shape not in facts.warm, len(facts.cached_models)
