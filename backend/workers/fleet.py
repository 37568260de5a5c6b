"""Several workers side by side: chooses the worker for a job, and knows which has it. The engine orders the queue."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.contract.cues import Cue
from backend.contract.events import Event, Interrupted
from backend.contract.request import GenerationRequest
from backend.contract.shape import Shape
from backend.contract.worker import WorkerView
from backend.workers.process import WorkerPlan
from backend.workers.supervisor import Supervisor


class Fleet:
    """A supervisor for each plan; when a worker dies, only its own job is interrupted.

    `on_event(job_id, event)` and `on_ready()` are called as a supervisor calls them, from its worker's thread.
    """

    def __init__(
        self, plans: Sequence[WorkerPlan], on_event: Callable[[str, Event], None], on_ready: Callable[[], None] = lambda: None
    ):
        self._on_event = on_event
        self._workers = tuple(Supervisor(plan, self._pass_on, on_ready) for plan in plans)
        self._homes: dict[str, Supervisor] = {}  # the worker that has a job or has just ended it, by job id

    def __len__(self) -> int:
        return len(self._workers)

    def start(self) -> None:
        """Starts the workers that are not running."""
        for worker in self._workers:
            worker.start()

    def has_room(self) -> bool:
        """Whether a fit worker is idle; if none is fit, any idle worker counts, so that the job's error says what is wrong."""
        views = self.workers()
        fit = [view for view in views if view.is_fit] or views
        return any(view.job_id is None for view in fit)

    def give(self, job_id: str, request: GenerationRequest, folder: Path, shape: Shape) -> bool:
        """Gives the job to the idle worker that can begin it soonest; False if none is idle. Raises: OSError."""
        idle = [(worker, view) for worker, view in zip(self._workers, self.workers(), strict=True) if view.job_id is None]
        if not idle:
            return False
        worker, _ = min(idle, key=lambda pair: _delay(pair[1], shape))
        self._homes[job_id] = worker
        try:
            worker.run(job_id, request, folder)
        except OSError:
            del self._homes[job_id]
            raise
        return True

    def cancel(self, job_id: str) -> None:
        """Asks the worker that has this job to stop it; its final event follows."""
        if worker := self._homes.get(job_id):
            worker.cancel(job_id)

    def say(self, job_id: str, cue: Cue) -> None:
        """Tells the worker that has this job what is said to it."""
        if worker := self._homes.get(job_id):
            worker.say(job_id, cue)

    def worker_of(self, job_id: str) -> WorkerView | None:
        """The worker that has this job, also while its final event is passed on."""
        worker = self._homes.get(job_id)
        return worker.view() if worker else None

    def workers(self) -> tuple[WorkerView, ...]:
        """All workers, always in the same order."""
        return tuple(worker.view() for worker in self._workers)

    def close(self) -> None:
        """Ends all workers at the same time. No callback comes afterwards."""
        first, *others = self._workers
        threads = [threading.Thread(target=worker.close, name="close") for worker in others]
        for thread in threads:
            thread.start()
        first.close()
        for thread in threads:
            thread.join()

    def _pass_on(self, job_id: str, event: Event) -> None:
        if isinstance(event, Interrupted):  # the job may be given to another worker at once
            self._homes.pop(job_id, None)
        self._on_event(job_id, event)
        if event.is_final:
            self._homes.pop(job_id, None)


def _delay(view: WorkerView, shape: Shape) -> tuple[bool, bool, bool]:
    """What the worker lacks for a job of this shape, the slowest to get first: health, the model, the programs."""
    return not view.is_fit, view.facts.model != shape.model, shape not in view.facts.warm
