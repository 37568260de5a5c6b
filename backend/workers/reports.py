"""What a worker reports to its engine: its status, its facts, and its jobs' events."""

from backend.schemas.events import Event
from backend.schemas.worker import WorkerFacts, WorkerState, WorkerStatus
from backend.workers.channel import Channel
from backend.workers.messages import Facts, JobEvent, Status
from backend.workers.multihost_sync import MultihostSync


class Reports:
    """Sends them, from any thread. Waiting for the other hosts repeats the last status, as a sign of progress."""

    def __init__(self, channel: Channel, sync: MultihostSync):
        self._channel, self._sync = channel, sync
        self._status: WorkerStatus | None = None

    def send_status(self, state: WorkerState, detail: str) -> None:
        """Sends what the worker is doing now."""
        self._status = WorkerStatus(state=state, detail=detail)
        self._channel.send(Status(status=self._status))

    def send_facts(self, facts: WorkerFacts) -> None:
        """Sends what the worker knows about its devices and its model."""
        self._channel.send(Facts(facts=facts))

    def send_event(self, job_id: str, event: Event) -> None:
        """Sends what has happened to a job."""
        self._channel.send(JobEvent(job_id=job_id, event=event))

    def gather(self, what: str, value: str = "") -> list[str]:
        """The values of all hosts, as `MultihostSync.gather`."""
        return self._sync.gather(what, value, self._repeat_status)

    def _repeat_status(self) -> None:
        if self._status is not None:
            self._channel.send(Status(status=self._status))
