"""Messages between the engine and its worker: one JSON object per line over a pipe. Does not interpret them.

engine -> worker: {"type": "run", "job_id", "request", "folder"}, {"type": "cancel", "job_id"}, {"type": "stop"}
worker -> engine: {"type": "status", "state", "detail"}, {"type": "event", "job_id", "event"},
                  {"type": "facts", "facts"}, {"type": "alive"}, {"type": "dying", "reason"}
"""

import json
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

Message = dict[str, Any]


class Channel:
    """One side of the conversation. Several threads may send; only one may receive."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO):
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Sends one message; False if the other side is gone."""
        line = json.dumps(message).encode("ascii") + b"\n"
        with self._lock:
            try:
                self._outgoing.write(line)
                self._outgoing.flush()
            except (BrokenPipeError, ValueError):  # ValueError: closed on this side
                return False
        return True

    def receive(self) -> Iterator[Message]:
        """The messages as they come, until the other side is gone. Raises: ValueError for a line that is not JSON."""
        for line in self._incoming:
            if not line.endswith(b"\n"):
                return  # the other side died while it wrote this
            yield json.loads(line)

    def close(self) -> None:
        """Closes both directions."""
        for stream in (self._outgoing, self._incoming):
            try:
                stream.close()
            except BrokenPipeError:
                pass  # nobody is there to read what was left to send
