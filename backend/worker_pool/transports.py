"""Transports between a supervisor and its worker. A new kind of transport needs a module and an entry in `TRANSPORTS`."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from backend.cluster.transport import ClusterTransport
from backend.multihost.transport import MultihostTransport
from backend.workers.messages import Message
from backend.workers.process import WorkerPlan, WorkerProcess

OnMessage = Callable[[Message], None]
OnExit = Callable[[int], None]
"""Receives the worker's exit code: negative if a signal killed the worker, `exit_reasons.LOST` if the code is not known."""


class Transport(Protocol):
    """A running worker. A separate thread calls `on_message`, and at the end `on_exit` once."""

    @property
    def pid(self) -> int | None:
        """The worker's process id, None if it does not run on this machine."""

    def send(self, message: Message) -> None:
        """Send a message. If the worker is dead, the message is dropped."""

    def kill(self) -> None:
        """Kill a worker that does not answer. If possible, the worker first writes its threads' stacks to its log."""

    def stop(self) -> None:
        """Ask the worker to save its work and end. Kill it if it does not end in time. Must not be called from a callback."""


Open = Callable[[WorkerPlan, Path, OnMessage, OnExit], Transport]
"""A function that starts the worker of a plan. The worker's output goes to the log at this path. Raises: OSError."""

TRANSPORTS: dict[str, Open] = {
    "process": WorkerProcess,
    "hosts": MultihostTransport,
    "cluster": ClusterTransport,
}
"""The kinds of transports, by the name in `WorkerPlan.transport`."""
