"""Store the unfinished jobs of a worker. Does not depend on models or messages."""

import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job in the worker. `arrived` is a monotonic time in seconds. Other threads may set `is_cancelled` and add `cues`."""

    job_id: str
    request: GenerationRequest
    folder: Path
    arrived: float = field(default_factory=time.monotonic)
    is_cancelled: threading.Event = field(default_factory=threading.Event)
    cues: queue.SimpleQueue[Cue] = field(default_factory=queue.SimpleQueue)

    def new_cues(self) -> list[Cue]:
        """Return the cues that arrived since the last call."""
        return [self.cues.get() for _ in range(self.cues.qsize())]


class Tasks:
    """All tasks of a worker, in order. One thread runs them, another thread adds and cancels them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Task | None] = queue.Queue()
        self._tasks: dict[str, Task] = {}  # by job id
        self._running: str | None = None  # the id of the running job

    def add(self, task: Task) -> None:
        """Append a new task."""
        with self._lock:
            self._tasks[task.job_id] = task
        self._waiting.put(task)

    def wait_for_next(self) -> Task | None:
        """Wait for the next task. Return None after `cancel_all`."""
        return self._waiting.get()

    def has_waiting(self) -> bool:
        """Return whether a task waits to run."""
        return not self._waiting.empty()

    def find(self, job_id: str) -> Task | None:
        """Return the job's task, None if the job has ended."""
        with self._lock:
            return self._tasks.get(job_id)

    def uncancelled(self) -> list[Task]:
        """Return the tasks that are not cancelled."""
        with self._lock:
            return [task for task in self._tasks.values() if not task.is_cancelled.is_set()]

    def begin(self, task: Task) -> bool:
        """Mark the task as running. Return False if the task was already cancelled."""
        with self._lock:
            is_cancelled = task.is_cancelled.is_set()
            self._running = None if is_cancelled else task.job_id
        return not is_cancelled

    def remove(self, task: Task) -> None:
        """Remove an ended task."""
        with self._lock:
            self._running = None
            self._tasks.pop(task.job_id, None)

    def cancel(self, job_id: str) -> bool:
        """Cancel a task. Return True if the task exists but does not run. The caller must then report the task's end."""
        with self._lock:
            task = self._tasks.get(job_id)
            if task is not None:
                task.is_cancelled.set()
            return task is not None and self._running != job_id

    def cancel_all(self) -> None:
        """Cancel all tasks. `wait_for_next` returns None after the tasks that already wait."""
        with self._lock:
            for task in self._tasks.values():
                task.is_cancelled.set()
        self._waiting.put(None)
