"""Synchronize the processes of a multihost worker. Everything that determines the next program must be equal on all hosts. A
value that only one host knows, such as a cancel, goes through `decide`, which all hosts call in the same order."""

import queue
from collections.abc import Callable
from typing import Any

from backend.workers.messages import Channel, Decide, Gather, Gathered

FAILED = "failed: "
"""Prefix of the outcome of failed work; the kind of the error follows."""
_SECONDS_BETWEEN_REPORTS = 5.0


class MultihostSync:
    """Synchronizes this process with the others, through the first host's hub (`backend.multihost.transport`)."""

    def __init__(self, index: int, channel: Channel):
        self._is_first, self._channel = index == 0, channel
        self._decided: queue.SimpleQueue[Decide] = queue.SimpleQueue()
        self._gathered: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def decide(self, what: str, value: object) -> Any:
        """Return the first host's `value` (JSON) on all hosts. The first host does not wait. Raises: RuntimeError if `what`, the
        name of the decision, differs between hosts."""
        if self._is_first:
            self._channel.send(Decide(what=what, value=value))
            return value
        message = self._decided.get()
        if message.what != what:
            raise RuntimeError(f"the hosts do not do the same: the first decided on {message.what!r}, this one on {what!r}")
        return message.value

    def gather(self, what: str, value: str, waiting: Callable[[], object] = lambda: None) -> list[str]:
        """Wait until all hosts call this, then return their values in host order. `what` names the barrier or the outcome of a
        job. If it differs between hosts, all processes are ended. `waiting` is called every few seconds during the wait."""
        self._channel.send(Gather(what=what, value=value))
        while True:
            try:
                return self._gathered.get(timeout=_SECONDS_BETWEEN_REPORTS)
            except queue.Empty:
                waiting()

    def handle(self, message: Decide | Gathered) -> None:
        """Handle a message from the first host's hub, in the thread that reads messages."""
        if isinstance(message, Decide):
            self._decided.put(message)
        else:
            self._gathered.put(message.values)
