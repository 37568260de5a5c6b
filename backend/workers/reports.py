"""Send a worker's status, facts and job events to its engine."""

from backend.schemas.events import Event
from backend.schemas.worker import WorkerFacts, WorkerState, WorkerStatus
from backend.workers.messages import Channel, Facts, JobEvent, Status
from backend.workers.multihost_sync import MultihostSync


class Reports:
    """Sends reports from any thread. While the worker waits for other hosts, the last status is repeated to show progress."""

    def __init__(self, channel: Channel, sync: MultihostSync | None):
        self._channel, self._sync = channel, sync
        self._status: WorkerStatus | None = None

    def send_status(self, state: WorkerState, detail: str) -> None:
        """Send the worker's current state."""
        self._status = WorkerStatus(state=state, detail=detail)
        self._channel.send(Status(status=self._status))

    def send_facts(self, facts: WorkerFacts) -> None:
        """Send the facts about the worker's devices and model."""
        self._channel.send(Facts(facts=facts))

    def send_event(self, job_id: str, event: Event) -> None:
        """Send an event of a job."""
        self._channel.send(JobEvent(job_id=job_id, event=event))

    def gather(self, what: str, value: str = "") -> list[str]:
        """Return the values of all hosts. See `MultihostSync.gather`."""
        return [value] if self._sync is None else self._sync.gather(what, value, self._repeat_status)

    def _repeat_status(self) -> None:
        if self._status is not None:
            self._channel.send(Status(status=self._status))
