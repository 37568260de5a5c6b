"""The queue and its one worker: requests in, stored events out. Imports neither jax nor torch."""

from collections.abc import Iterator
from pathlib import Path

from backend.events import Event
from backend.request import GenerationRequest
from backend.store import Job
from backend.worker_process import WorkerStatus


class Engine:
    """Runs requests one after another in a worker process; safe to use from several threads."""

    def __init__(self, data_dir: Path, model: str | None = None, start_worker: bool = True):
        raise NotImplementedError

    def submit(self, request: GenerationRequest, owner: str = "local") -> Job:
        """Stores the request, then queues it. Raises: ImageError if an image of it cannot be used."""
        raise NotImplementedError

    def job(self, job_id: str) -> Job:
        """Raises: JobNotFound."""
        raise NotImplementedError

    def jobs(self, owner: str | None = None) -> list[Job]:
        """All jobs, or those of one owner, newest first."""
        raise NotImplementedError

    def events(self, job_id: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Replays the events with a sequence number above `after`, follows, and ends after the final one."""
        raise NotImplementedError

    def position(self, job_id: str) -> int | None:
        """How many waiting jobs stand before this one (0: it is next); None once it runs or has ended."""
        raise NotImplementedError

    def cancel(self, job_id: str) -> None:
        """Stops a job, waiting or running; does nothing to one that has ended."""
        raise NotImplementedError

    def worker_status(self) -> WorkerStatus:
        """What the worker does right now: state starting|loading|warming|ready|busy|failed, and a sentence."""
        raise NotImplementedError

    def close(self) -> None:
        """Stops the worker and the queue; jobs that wait stay stored."""
        raise NotImplementedError
