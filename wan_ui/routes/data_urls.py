"""Cut long data URLs (RFC 2397) out of JSON before the JSON is parsed, and decode them piece by piece.

The body stays in its file, and the text that is parsed has a limit. Therefore any body takes linear time and little memory.
"""

import base64
import mmap
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST_IMAGES = 24  # most images in each list of a request, and most files in all lists of a form together
MOST_DATA_URLS = 10 + MOST_IMAGES
_LONG = 10_000  # bytes; shorter data URLs stay in the JSON
_PIECE = 2**18
_START, _QUOTE, _ESCAPE = b'"data:', b'"', b"\\"
_SLASH = b"\\/", b"/"  # JSON allows a backslash before a slash
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # possessive quantifiers: backtracking would need much memory


class TextTooLong(Exception):
    """The body without its data URLs has too much text to parse."""


@dataclass(frozen=True)
class DataUrl:
    """A data URL in a JSON file, from byte `start` to byte `end`, exclusive."""

    body: Path
    start: int
    end: int

    def head(self, num_bytes: int) -> str:
        with self.body.open("rb") as file:
            file.seek(self.start)
            return file.read(min(num_bytes, self.end - self.start)).replace(*_SLASH).decode("ascii", "replace")

    def decode(self, file: BinaryIO) -> None:
        """Decode the base64 text after the comma, and write the bytes to `file`. Raises: ValueError."""
        decode_base64_pieces(self._pieces(), file)

    def _pieces(self) -> Iterator[bytes]:
        with self.body.open("rb") as file:
            file.seek(self.start)
            left, is_head, unread = self.end - self.start, True, b""
            while left > 0:
                piece = file.read(min(_PIECE, left))
                left -= len(piece)
                piece = unread + piece
                unread = piece[-1:] if left and piece.endswith(_ESCAPE) else b""  # the next piece may start with the slash
                piece = piece[: len(piece) - len(unread)].replace(*_SLASH)
                if is_head:
                    piece, is_head = piece.partition(b",")[2], False
                yield piece


def cut_data_urls(body: Path, max_bytes: int) -> tuple[bytes, dict[str, DataUrl]]:
    """Replace each long data URL in the JSON by a short placeholder. Return the JSON, and the data URLs by placeholder.

    Raises: TextTooLong if the JSON without the data URLs has more than `max_bytes`.
    """
    if not body.stat().st_size:
        return b"", {}
    mark, cut, text, done = secrets.token_hex(8), dict[str, DataUrl](), bytearray(), 0
    with body.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:

        def keep(end: int) -> None:
            nonlocal done
            if len(text) + end - done > max_bytes:
                raise TextTooLong
            text.extend(whole[done:end])
            done = end

        while (start := whole.find(_QUOTE, done, done + max_bytes + 1)) >= 0:
            keep(start)
            is_data = whole[start : start + len(_START)] == _START
            end = whole.find(_QUOTE, start + len(_START)) if is_data else 0
            if end - start > _LONG and whole[end - 1 : end] != _ESCAPE and len(cut) < MOST_DATA_URLS:
                name = f"data:{mark}-{len(cut)}"
                cut[name] = DataUrl(body, start + 1, end)
                text.extend(f'"{name}"'.encode())
                done = end + 1
            elif match := _STRING.match(whole, start, start + max_bytes + 2):
                keep(match.end())
            else:
                break
        keep(len(whole))
    return bytes(text), cut


def decode_base64_pieces(pieces: Iterable[bytes], file: BinaryIO) -> None:
    """Decode base64 text that is given in pieces of any length, and write the bytes to `file`. Raises: ValueError."""
    unread, is_over = b"", False
    for piece in pieces:
        piece = unread + piece
        whole = len(piece) - len(piece) % 4
        unread = piece[whole:]
        if is_over and piece:
            raise ValueError("text after the end")
        is_over = piece[:whole].endswith(b"=")
        file.write(base64.b64decode(piece[:whole], validate=True))
    file.write(base64.b64decode(unread, validate=True))
