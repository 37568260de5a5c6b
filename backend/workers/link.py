"""What a supervisor talks through: a conversation with one worker loop, wherever that runs. A new kind is a module and a line."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from backend.workers.channel import Message
from backend.workers.process import WorkerPlan, WorkerProcess

OnMessage = Callable[[Message], None]
OnExit = Callable[[int], None]
"""Gets an exit code: 0 and above as the worker ended, below 0 the signal that killed it."""


class Link(Protocol):
    """One worker loop that runs. Its callbacks come from a thread of its own, `on_exit` once, at the end."""

    @property
    def pid(self) -> int | None:
        """The worker's process id; None if it is no process on this machine."""

    def send(self, message: Message) -> None:
        """Sends a message; one that a dead worker does not get is dropped."""

    def stop(self) -> None:
        """Asks the worker to end, and ends it if it does not. Never called from a callback."""


Open = Callable[[WorkerPlan, Path, OnMessage, OnExit], Link]
"""Starts a worker as planned; what it prints goes to the log at this path. Raises: OSError."""

LINKS: dict[str, Open] = {
    "process": WorkerProcess,
}
"""The kinds of links, by the name in `WorkerPlan.link`."""
