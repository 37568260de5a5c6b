"""How a supervisor reaches its worker loop, wherever that runs. A new kind of link is a module and a line in `TRANSPORTS`."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from backend.cluster.transport import ClusterTransport
from backend.multihost.transport import MultihostTransport
from backend.workers.messages import Message
from backend.workers.process import WorkerPlan, WorkerProcess

OnMessage = Callable[[Message], None]
OnExit = Callable[[int], None]
"""Gets an exit code: 0 or more from the worker itself; below 0, minus the signal that killed it; `death.LOST` if it is lost."""


class Transport(Protocol):
    """One running worker loop. It calls back from a thread of its own, `on_exit` once, at the end."""

    @property
    def pid(self) -> int | None:
        """The worker's process id; None if it is not a process on this machine."""

    def send(self, message: Message) -> None:
        """Sends a message; if the worker is dead, the message is dropped."""

    def kill(self) -> None:
        """Ends a worker that does not answer; what its threads were doing goes to its log, if it can still write."""

    def stop(self) -> None:
        """Asks the worker to keep its work and to end, and kills it if it does not. Must not be called from a callback."""


Open = Callable[[WorkerPlan, Path, OnMessage, OnExit], Transport]
"""Starts the worker of a plan; its output goes to the log at this path. Raises: OSError."""

TRANSPORTS: dict[str, Open] = {
    "process": WorkerProcess,
    "hosts": MultihostTransport,
    "cluster": ClusterTransport,
}
"""The kinds of links, by the name in `WorkerPlan.transport`."""
