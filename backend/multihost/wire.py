"""A connection between two hosts whose ends have shown each other that they know the same secret. Knows no messages' meaning.

Each end proves it by an HMAC over random numbers of both, so that the secret is never sent. What follows is neither encrypted nor
signed: the network between the hosts must be theirs alone (docs/security.md).
"""

import hashlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any

from backend.workers.messages import Heartbeat, Message, decode, encode

SILENCE_SECONDS = 8.0  # without a byte, after which the other host counts as lost: it says each second that it lives
BEAT_SECONDS = 1.0
_MOST_BYTES_OF_STRANGERS = 1024
_MOST_BYTES = 2**32
_PIECE = 2**20
_ROLES = ("first", "member")


class Gone(ConnectionError):
    """The other side has ended the connection, or says nothing any more."""


class WrongSecret(Exception):
    """The other side does not know this secret."""


class Wire:
    """One end. Several threads may send; only one may receive. It shows by itself that it lives, until it is closed."""

    def __init__(self, connection: socket.socket):
        """Raises: OSError if the connection is gone already."""
        self._socket = connection
        self._socket.settimeout(SILENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming = connection.makefile("rb")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._most = _MOST_BYTES_OF_STRANGERS

    def send(self, message: Message, files: Sequence[bytes] = ()) -> bool:
        """Sends a message, and files after it; False if the other side is gone."""
        return self._send(encode(message), files)

    def _send(self, values: dict[str, Any], files: Sequence[bytes] = ()) -> bool:
        body = json.dumps(values | {"sizes": [len(file) for file in files]}).encode("ascii")
        with self._lock:
            try:
                for part in (len(body).to_bytes(8), body, *files):
                    for start in range(0, len(part), _PIECE):
                        self._socket.sendall(memoryview(part)[start : start + _PIECE])
            except OSError:
                return False
        return True

    def receive(self) -> tuple[Message, list[bytes]]:
        """The next message and its files. Raises: Gone."""
        values, files = self._receive()
        try:
            return decode(values), files
        except (ValueError, LookupError, TypeError) as error:
            raise Gone(f"it says what nobody should: {error}") from error

    def _receive(self) -> tuple[dict[str, Any], list[bytes]]:
        try:
            values = json.loads(self._read(int.from_bytes(self._read(8))))
            sizes = values.pop("sizes")
            return values, [self._read(size) for size in sizes]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # strangers send anything
            raise Gone(str(error)) from error

    def _read(self, size: int) -> bytes:
        if not 0 <= size <= self._most:
            raise ValueError(f"{size} bytes at once")
        data = self._incoming.read(size)
        if len(data) < size:
            raise ConnectionError("closed")
        return data

    def prove(self, secret: str, is_first: bool) -> None:
        """Shows the other side that this one knows the secret, and asks the same of it; then begins to show that it lives. Both
        sides must do this before anything else. Raises: Gone, WrongSecret."""
        own = secrets.token_hex(32)
        self._send({"number": own})
        theirs = _text(self._receive()[0], "number")
        numbers = (own, theirs) if is_first else (theirs, own)
        mine, others = _ROLES if is_first else _ROLES[::-1]
        if is_first:  # a stranger gets no proof to work on
            self._check(secret, others, numbers)
            self._send({"proof": _proof(secret, mine, numbers)})
        else:
            self._send({"proof": _proof(secret, mine, numbers)})
            self._check(secret, others, numbers)
        self._most = _MOST_BYTES
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def _check(self, secret: str, role: str, numbers: tuple[str, str]) -> None:
        proof = _text(self._receive()[0], "proof")
        if not hmac.compare_digest(proof.encode(), _proof(secret, role, numbers).encode()):
            self._send({"proof": ""})  # so that an honest one hears why
            raise WrongSecret

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS) and self.send(Heartbeat()):
            pass

    def close(self) -> None:
        """Ends the connection; a `receive` that waits raises Gone."""
        self._closed.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster
        self._incoming.close()
        self._socket.close()


def _text(values: dict[str, Any], field: str) -> str:
    """A stranger's text: ours are ASCII. Raises: Gone for anything else, such as half of a character, which no text can hold."""
    text = values.get(field)
    if not isinstance(text, str) or not text.isascii():
        raise Gone(f"{field} is no text of ours")
    return text


def _proof(secret: str, role: str, numbers: tuple[str, str]) -> str:
    words = "\n".join(map(str, (role, *numbers)))
    return hmac.new(secret.encode(), words.encode(), hashlib.sha256).hexdigest()
