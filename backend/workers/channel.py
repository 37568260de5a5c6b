"""Messages between the engine and its worker: one JSON object per line over a pipe. Does not interpret them."""

import json
import threading
from collections.abc import Iterator
from typing import IO

from backend.workers.messages import Message, decode, encode


class Channel:
    """One side of the conversation. Several threads may send; only one may receive."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]):
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Sends one message; False if the other side is gone."""
        line = json.dumps(encode(message)).encode("ascii") + b"\n"
        with self._lock:
            try:
                self._outgoing.write(line)
                self._outgoing.flush()
            except (BrokenPipeError, ValueError):  # ValueError: closed on this side
                return False
        return True

    def receive(self) -> Iterator[Message]:
        """The messages as they come, until the other side is gone. Raises: as `decode`, for a line
        that is none."""
        for line in self._incoming:
            if not line.endswith(b"\n"):
                return  # the other side died while it wrote this
            yield decode(json.loads(line))

    def close(self) -> None:
        """Closes both directions."""
        for stream in (self._outgoing, self._incoming):
            try:
                stream.close()
            except BrokenPipeError:
                pass  # nobody is there to read what was left to send
