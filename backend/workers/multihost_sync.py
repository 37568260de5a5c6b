"""How one worker's processes on several hosts stay in step: the first decides, the others follow, and all wait for each other.

Whatever decides which program runs next must be the same on all hosts. What is known to one only, such as a cancel, therefore
goes through `decide`, at the same places in the same order on each. `gather` is where all of them wait for the last.
"""

import queue
from collections.abc import Callable
from typing import Any, Protocol

from backend.workers.channel import Channel
from backend.workers.messages import Decide, Gather, Gathered, Message

FAILED = "failed: "
"""Begins what a host gathers for after work that went wrong; the kind of the error follows."""
_SECONDS_BETWEEN_REPORTS = 5.0


class MultihostSync(Protocol):
    """What a worker asks of its companions."""

    is_alone: bool

    def decide(self, what: str, value: object) -> Any:
        """The first host's value (JSON), on all hosts; `what` must be the same on all."""

    def gather(self, what: str, value: str, waiting: Callable[[], object] = ...) -> list[str]:
        """The values of all hosts, in their order, once all have come for this; `waiting` is called every few seconds until then.
        Where they come for different things, all are ended."""

    def handle(self, message: Message) -> bool:
        """Takes a message that is part of this; False for any other. Called from the thread that reads messages."""


class SingleProcess(MultihostSync):
    """The sync of a worker that is one process."""

    is_alone = True

    def decide(self, what: str, value: object) -> Any:
        return value

    def gather(self, what: str, value: str, waiting: Callable[[], object] = lambda: None) -> list[str]:
        return [value]

    def handle(self, message: Message) -> bool:
        return False


class SeveralHosts(MultihostSync):
    """The sync of one of several processes; the first host's hub (`backend.multihost.transport`) passes on what they say."""

    is_alone = False

    def __init__(self, index: int, channel: Channel):
        self._is_first, self._channel = index == 0, channel
        self._decided: queue.SimpleQueue[Decide] = queue.SimpleQueue()
        self._gathered: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def decide(self, what: str, value: object) -> Any:
        """The first does not wait. Raises: RuntimeError if the hosts do not do the same."""
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
