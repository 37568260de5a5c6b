"""Synchronize the processes of a multihost worker: the first host decides, the others follow, and all wait for each other.

Everything that determines the next program must be equal on all hosts. A value that only one host knows, such as a cancel,
goes through `decide`, which all hosts call in the same order. `gather` is a barrier for all hosts.
"""

import queue
from collections.abc import Callable
from typing import Any, Protocol

from backend.workers.channel import Channel
from backend.workers.messages import Decide, Gather, Gathered, Message

FAILED = "failed: "
"""Prefix of the outcome of failed work; the kind of the error follows."""
_SECONDS_BETWEEN_REPORTS = 5.0


class MultihostSync(Protocol):
    """The interface between the processes of a worker. `is_alone` is True for a single process."""

    is_alone: bool

    def decide(self, what: str, value: object) -> Any:
        """Return the first host's `value` (JSON) on all hosts. `what` names the decision and must be equal on all hosts."""

    def gather(self, what: str, value: str, waiting: Callable[[], object] = ...) -> list[str]:
        """Wait until all hosts call this, then return their values in host order.

        `what` names the barrier or the outcome of a job. If `what` differs between hosts, all processes are ended.
        `waiting` is called every few seconds during the wait.
        """

    def handle(self, message: Message) -> bool:
        """Handle a `Decide` or `Gathered` message. Return False for other messages. The thread that reads messages calls this."""


class SingleProcess(MultihostSync):
    """The synchronization of a worker with one process: values are returned unchanged."""

    is_alone = True

    def decide(self, what: str, value: object) -> Any:
        return value

    def gather(self, what: str, value: str, waiting: Callable[[], object] = lambda: None) -> list[str]:
        return [value]

    def handle(self, message: Message) -> bool:
        return False


class SeveralHosts(MultihostSync):
    """The synchronization of one of several processes. The first host's hub (`backend.multihost.transport`) forwards messages."""

    is_alone = False

    def __init__(self, index: int, channel: Channel):
        self._is_first, self._channel = index == 0, channel
        self._decided: queue.SimpleQueue[Decide] = queue.SimpleQueue()
        self._gathered: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def decide(self, what: str, value: object) -> Any:
        """See `MultihostSync.decide`. The first host does not wait. Raises: RuntimeError if `what` differs between hosts."""
        if self._is_first:
            self._channel.send(Decide(what=what, value=value))
            return value
        message = self._decided.get()
        if message.what != what:
            raise RuntimeError(f"the hosts do not do the same: the first decided on {message.what!r}, this one on {what!r}")
        return message.value

    def gather(self, what: str, value: str, waiting: Callable[[], object] = lambda: None) -> list[str]:
        self._channel.send(Gather(what=what, value=value))
        while True:
            try:
                return self._gathered.get(timeout=_SECONDS_BETWEEN_REPORTS)
            except queue.Empty:
                waiting()

    def handle(self, message: Message) -> bool:
        if isinstance(message, Decide):
            self._decided.put(message)
        elif isinstance(message, Gathered):
            self._gathered.put(message.values)
        else:
            return False
        return True
