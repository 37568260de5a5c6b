"""Several workers side by side: chooses the worker for a job, and knows which has it. The engine orders the queue.

Workers on other machines come and go while the others work.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.schemas.events import Event, Interrupted, Step, Upscaling
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.worker import CacheAction, WorkerView
from backend.worker_pool.supervisor import Supervisor, WorkerLost
from backend.workers.messages import ExpectModels, ManageModel, PrepareFor
from backend.workers.process import WorkerPlan


class WorkerPool:
    """A supervisor for each plan, of the start and taken in later; when a worker dies, only its own job is interrupted.

    `on_event(job_id, event)` and `on_ready()` are called as a supervisor calls them, from its worker's thread.
    """

    def __init__(
        self, plans: Sequence[WorkerPlan], on_event: Callable[[str, Event], None], on_ready: Callable[[], None] = lambda: None
    ):
        self._on_event, self._on_ready = on_event, on_ready
        self._lock = threading.Lock()
        self._is_closed = False
        self._workers = tuple(map(self._supervisor, plans))
        self._ends: dict[str, float] = {}  # when a job will have ended, by its last step, in monotonic seconds
        self._homes: dict[str, Supervisor] = {}  # the worker that has a job or has just ended it, by job id

    def __len__(self) -> int:
        return len(self._workers)

    def start(self) -> None:
        """Starts the workers that are not running."""
        for worker in self._workers:
            worker.start()

    def take_in(self, plan: WorkerPlan) -> None:
        """Starts one more worker; its name must differ from the others'. Raises: OSError if it cannot be started."""
        worker = self._supervisor(plan)
        with self._lock:
            if self._is_closed:
                return
            worker.start()
            self._workers += (worker,)

    def let_go(self, name: str) -> None:
        """The machine of this worker has gone, or is no longer wanted: its job, if it has one, is interrupted."""
        for worker in self._workers:
            if worker.view().name == name:
                worker.lose()

    def has_room(self) -> bool:
        """Whether a fit worker is idle; if none is fit, any idle worker counts, so that the job's error says what is wrong."""
        views = self.workers()
        fit = [view for view in views if view.is_fit] or views
        return any(view.job_id is None for view in fit)

    def give(self, job_id: str, request: GenerationRequest, folder: Path, shape: Shape) -> bool:
        """Gives the job to the idle worker that can begin it soonest; False if none is idle. Raises: OSError."""
        views = [(worker, worker.view()) for worker in self._workers]
        idle = [(worker, view) for worker, view in views if view.job_id is None]
        for worker, _ in sorted(idle, key=lambda pair: _delay(pair[1], shape)):
            self._homes[job_id] = worker
            try:
                worker.run(job_id, request, folder)
                return True
            except WorkerLost:  # in this moment
                self._homes.pop(job_id, None)
            except OSError:
                self._homes.pop(job_id, None)
                raise
        return False

    def cancel(self, job_id: str) -> None:
        """Asks the worker that has this job to stop it; its final event follows."""
        if worker := self._homes.get(job_id):
            worker.cancel(job_id)

    def send_cue(self, job_id: str, cue: Cue) -> None:
        """Tells the worker that has this job what is said to it."""
        if worker := self._homes.get(job_id):
            worker.send_cue(job_id, cue)

    def expect(self, models: Sequence[str], preset: str | None = None) -> None:
        """Jobs in line need the models of these checkpoints, the next first. That of the `preset`, if one is given, is fetched by
        the worker that will be free first, unless one keeps it."""
        fetcher = None
        if preset is not None and models[0] not in self.kept_models():
            fetcher = min(self._workers, key=lambda worker: self._ends.get(worker.view().job_id, math.inf), default=None)
        for worker in self._workers:
            worker.tell(ExpectModels(models=list(models), preset=preset if worker is fetcher else None))

    def prepare_for(self, request: GenerationRequest, shape: Shape) -> None:
        """Lets the idle worker that has most of it make ready what this request would need."""
        if ready := self._ready():
            min(ready, key=lambda worker: _delay(worker.view(), shape)).tell(PrepareFor(request=request))

    def is_one_ready(self) -> bool:
        """Whether a worker could begin a job at once."""
        return bool(self._ready())

    def _ready(self) -> list[Supervisor]:
        views = ((worker, worker.view()) for worker in self._workers)
        return [worker for worker, view in views if view.job_id is None and view.status.state == "ready"]

    def keep(self, name: str, model: str, how: CacheAction) -> None:
        """What the operator asks of this worker for a model that it keeps."""
        for worker in self._workers:
            if worker.view().name == name:
                worker.tell(ManageModel(model=model, how=how))

    def kept_models(self) -> frozenset[str]:
        """The checkpoints whose models a worker uses or keeps."""
        facts = [view.facts for view in self.workers()]
        used = {one.model for one in facts if one.model is not None}
        return frozenset(used.union(model.model for one in facts for model in one.kept))

    def is_worth_waiting(self, model: str, load_seconds: float) -> bool:
        """Whether a job of this model had better wait for a busy worker that keeps it, because no idle one does, and loading it
        there takes longer than what the busy one still has to do."""
        views = [view for view in self.workers() if view.is_fit]
        keeping = [view for view in views if any(kept.model == model for kept in view.facts.kept)]
        if not keeping or any(view.job_id is None for view in keeping):
            return False
        now = time.monotonic()
        return min(self._ends.get(view.job_id, math.inf) - now for view in keeping) < load_seconds

    def worker_of(self, job_id: str) -> WorkerView | None:
        """The worker that has this job, also while its final event is passed on."""
        worker = self._homes.get(job_id)
        return worker.view() if worker else None

    def workers(self) -> tuple[WorkerView, ...]:
        """All workers, always in the same order."""
        return tuple(worker.view() for worker in self._workers)

    def close(self) -> None:
        """Ends all workers at the same time. No callback comes afterwards."""
        with self._lock:
            self._is_closed = True
        threads = [threading.Thread(target=worker.close, name="close") for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _supervisor(self, plan: WorkerPlan) -> Supervisor:
        return Supervisor(plan, self._pass_on, self._on_ready, self._remove)

    def _remove(self, lost: Supervisor) -> None:
        with self._lock:
            self._workers = tuple(worker for worker in self._workers if worker is not lost)

    def _pass_on(self, job_id: str, event: Event) -> None:
        if isinstance(event, Step | Upscaling):
            self._ends[job_id] = time.monotonic() + event.seconds_left
        elif isinstance(event, Interrupted) or event.is_final:
            self._ends.pop(job_id, None)
        if isinstance(event, Interrupted):  # the job may be given to another worker at once
            self._homes.pop(job_id, None)
        self._on_event(job_id, event)
        if event.is_final:
            self._homes.pop(job_id, None)


def _delay(view: WorkerView, shape: Shape) -> tuple[bool, bool, bool, bool, int]:
    """What the worker lacks for a job of this shape, the slowest to get first: health, the model, its place on the devices, the
    programs; at last, how many other models it keeps."""
    facts = view.facts
    kept = next((model for model in facts.kept if model.model == shape.model), None)
    is_here = kept is not None or facts.model == shape.model
    is_on_host = kept is not None and not kept.is_on_chips
    return not view.is_fit, not is_here, is_on_host, shape not in facts.warm, len(facts.kept)
