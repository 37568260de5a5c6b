"""Connect two hosts that authenticate each other with a shared secret. Does not interpret the messages.

Each end proves that it knows the secret by an HMAC over random numbers of both ends and the binding of the encrypted connection
(`backend.multihost.tls`). The secret itself is never sent.
"""

import hashlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Sequence

from backend.multihost.tls import TlsConnection
from backend.workers.messages import Heartbeat, Message, decode_message, encode_message

SILENCE_SECONDS = 8.0  # the other host counts as lost after this time without a byte; it sends a heartbeat each second
BEAT_SECONDS = 1.0
_MOST_UNAUTHENTICATED_BYTES = 1024
_MOST_BYTES = 2**32
_ROLES = ("first", "member")


class ConnectionLost(ConnectionError):
    """The other host closed the connection, stopped sending, or sent an invalid message."""


class WrongSecret(Exception):
    """The other host has a different secret."""


class Wire:
    """One end of a connection. Several threads may send, only one may receive. Sends heartbeats until it is closed."""

    def __init__(self, connection: socket.socket):
        """Prepare the connection. Raises: OSError if the connection has ended."""
        self._socket = connection
        self._socket.settimeout(SILENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tls = TlsConnection(connection)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._most = _MOST_UNAUTHENTICATED_BYTES

    def send(self, message: Message, files: Sequence[bytes] = ()) -> bool:
        """Send a message and then files. Return False if the connection has ended."""
        return self._send(encode_message(message), files)

    def _send(self, values: dict[str, object], files: Sequence[bytes] = ()) -> bool:
        body = json.dumps(values | {"sizes": [len(file) for file in files]}).encode("ascii")
        with self._lock:
            try:
                for part in (len(body).to_bytes(8), body, *files):
                    self._tls.send(part)
            except OSError:
                return False
        return True

    def receive(self) -> tuple[Message, list[bytes]]:
        """Wait for the next message and its files. Raises: ConnectionLost."""
        values, files = self._receive()
        try:
            return decode_message(values), files
        except (ValueError, LookupError, TypeError) as error:
            raise ConnectionLost(f"invalid message: {error}") from error

    def _receive(self) -> tuple[dict[str, object], list[bytes]]:
        try:
            values = json.loads(self._read(int.from_bytes(self._read(8))))
            sizes = values.pop("sizes")
            return values, [self._read(size) for size in sizes]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            # An untrusted message can cause any of these errors.
            raise ConnectionLost(str(error)) from error

    def _read(self, size: int) -> bytes:
        if not 0 <= size <= self._most:
            raise ValueError(f"{size} bytes in one message, at most {self._most} are allowed")
        return self._tls.read(size)

    def authenticate(self, secret: str, is_first: bool) -> None:
        """Encrypt the connection, and let each host prove that it knows the secret. Then start heartbeats.

        Both hosts must call this first. Raises: ConnectionLost, WrongSecret.
        """
        try:
            binding = self._tls.handshake(is_server=is_first).hex()
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        own = secrets.token_hex(32)
        self._send({"number": own})
        theirs = _read_text(self._receive()[0], "number")
        numbers = (*((own, theirs) if is_first else (theirs, own)), binding)
        mine, others = _ROLES if is_first else _ROLES[::-1]
        if is_first:  # the first host checks the other host's proof before it sends its own
            self._check(secret, others, numbers)
            self._send({"proof": _make_proof(secret, mine, numbers)})
        else:
            self._send({"proof": _make_proof(secret, mine, numbers)})
            self._check(secret, others, numbers)
        self._most = _MOST_BYTES
        threading.Thread(target=self._send_heartbeats, name="beat", daemon=True).start()

    def _check(self, secret: str, role: str, numbers: Sequence[str]) -> None:
        proof = _read_text(self._receive()[0], "proof")
        if not hmac.compare_digest(proof.encode(), _make_proof(secret, role, numbers).encode()):
            self._send({"proof": ""})  # the other host then reports the wrong secret too
            raise WrongSecret

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(BEAT_SECONDS) and self.send(Heartbeat()):
            pass

    def close(self) -> None:
        """Close the connection. A waiting `receive` raises ConnectionLost."""
        self._closed.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other host closed the connection first
        self._socket.close()


def _read_text(values: dict[str, object], field: str) -> str:
    """Return a field of a message from an unauthenticated host. Raises: ConnectionLost if the field is not ASCII text."""
    text = values.get(field)
    if not isinstance(text, str) or not text.isascii():
        raise ConnectionLost(f"{field} must be ASCII text")
    return text


def _make_proof(secret: str, role: str, numbers: Sequence[str]) -> str:
    words = "\n".join(map(str, (role, *numbers)))
    return hmac.new(secret.encode(), words.encode(), hashlib.sha256).hexdigest()
