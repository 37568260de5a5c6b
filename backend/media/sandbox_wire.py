"""Messages between the studio and a sandbox process, each with its length in front. `backend.media.sandbox` sends calls as
pickles. Replies are JSON of limited size: the process trusts the studio, but the studio does not trust the process."""

import struct
from typing import IO

_LENGTH = struct.Struct(">I")


def write_message(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def read_message(pipe: IO[bytes], most: int | None = None) -> bytes:
    """Read the next message. Raises: EOFError if the other process has ended, ValueError for a message of more than `most`
    bytes."""
    header = pipe.read(_LENGTH.size)
    if len(header) != _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    if most is not None and length > most:
        raise ValueError("this reply is too long")
    data = pipe.read(length)
    if len(data) != length:
        raise EOFError
    return data
