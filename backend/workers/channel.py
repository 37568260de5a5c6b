"""Send and receive messages between the engine and its worker: one JSON object per line over a pipe."""

import json
import threading
from collections.abc import Iterator
from typing import IO

from backend.workers.messages import Message, decode_message, encode_message


class Channel:
    """One end of the connection. Several threads may send, only one may receive."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]):
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Send one message. Return False if the other process has ended."""
        line = json.dumps(encode_message(message)).encode("ascii") + b"\n"
        with self._lock:
            try:
                self._outgoing.write(line)
                self._outgoing.flush()
            except (BrokenPipeError, ValueError):  # ValueError means that this side closed the pipe
                return False
        return True

    def receive(self) -> Iterator[Message]:
        """Yield the messages until the other process ends. Raises the exceptions of `decode_message` for an invalid line."""
        for line in self._incoming:
            if not line.endswith(b"\n"):
                return  # the other process died while it wrote the line
            yield decode_message(json.loads(line))

    def close(self) -> None:
        """Close both directions."""
        for stream in (self._outgoing, self._incoming):
            try:
                stream.close()
            except BrokenPipeError:
                pass  # the other process has ended, so unsent messages are lost
