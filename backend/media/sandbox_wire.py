"""Messages between the studio and a sandbox process: calls as pickles, replies as JSON.

The process trusts the studio, but the studio does not trust the process. Therefore a reply has only plain values.
"""

import json
import pickle
import struct
from collections.abc import Callable
from typing import IO, Any

_LENGTH = struct.Struct(">I")
_MOST_REPLIED = 16_000_000  # bytes of a reply; larger replies are refused. The largest real replies are thumbnails in base64


def write_work(pipe: IO[bytes], work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Send a call: an importable function and its arguments."""
    _write_message(pipe, pickle.dumps((work, arguments)))


def read_work(pipe: IO[bytes]) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Read the next call. Raises: EOFError if the studio has ended."""
    return pickle.loads(_read_message(pipe, None))


def write_reply(pipe: IO[bytes], reply: dict[str, object]) -> None:
    """Send a call's result or error."""
    _write_message(pipe, json.dumps(reply).encode())


def read_reply(pipe: IO[bytes]) -> dict[str, Any]:
    """Read a call's result or error. Raises: EOFError if the process has ended, ValueError if the message is not a reply."""
    reply = json.loads(_read_message(pipe, _MOST_REPLIED))
    if not isinstance(reply, dict):
        raise ValueError("this is no reply")
    return reply


def _write_message(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read_message(pipe: IO[bytes], most: int | None) -> bytes:
    (length,) = _LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))
    if most is not None and length > most:
        raise ValueError("this reply is too long")
    return _read_exactly(pipe, length)


def _read_exactly(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) != length:
        raise EOFError
    return data
