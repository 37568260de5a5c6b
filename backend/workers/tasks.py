"""The jobs that a worker has been given and that have not ended. Knows no model and no messages."""

import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job in the worker. `arrived` is a monotonic time in seconds; `is_cancelled` may be set, and `cues` may come, at any
    moment."""

    job_id: str
    request: GenerationRequest
    folder: Path
    arrived: float = field(default_factory=time.monotonic)
    is_cancelled: threading.Event = field(default_factory=threading.Event)
    cues: queue.SimpleQueue[Cue] = field(default_factory=queue.SimpleQueue)

    def new_cues(self) -> list[Cue]:
        """The cues that came since this was called last."""
        return [self.cues.get() for _ in range(self.cues.qsize())]


class Tasks:
    """All tasks of a worker, in their order. One thread runs them, another adds and cancels them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Task | None] = queue.Queue()
        self._tasks: dict[str, Task] = {}  # by job id
        self._begun: str | None = None  # the job whose pipeline runs

    def add(self, task: Task) -> None:
        """Puts a new one last."""
        with self._lock:
            self._tasks[task.job_id] = task
        self._waiting.put(task)

    def wait_for_next(self) -> Task | None:
        """Waits for the next one; None once all have been given up."""
        return self._waiting.get()

    def has_waiting(self) -> bool:
        """Whether `next` would return at once."""
        return not self._waiting.empty()

    def find(self, job_id: str) -> Task | None:
        """The job's task; None if it has ended."""
        with self._lock:
            return self._tasks.get(job_id)

    def uncancelled(self) -> list[Task]:
        """Those that are not cancelled."""
        with self._lock:
            return [task for task in self._tasks.values() if not task.is_cancelled.is_set()]

    def begin(self, task: Task) -> bool:
        """Marks it as the one that runs; False if it was cancelled before."""
        with self._lock:
            is_cancelled = task.is_cancelled.is_set()
            self._begun = None if is_cancelled else task.job_id
        return not is_cancelled

    def remove(self, task: Task) -> None:
        """Forgets it."""
        with self._lock:
            self._begun = None
            self._tasks.pop(task.job_id, None)

    def cancel(self, job_id: str) -> bool:
        """Cancels one; whether it has not begun, so that nobody else ends it."""
        with self._lock:
            task = self._tasks.get(job_id)
            if task is not None:
                task.is_cancelled.set()
            return task is not None and self._begun != job_id

    def cancel_all(self) -> None:
        """Cancels all, and ends `next`."""
        with self._lock:
            for task in self._tasks.values():
                task.is_cancelled.set()
        self._waiting.put(None)
