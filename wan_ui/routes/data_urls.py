"""Cuts long data URLs (RFC 2397) out of JSON before it is parsed, and decodes them piece by piece.

Whatever the body holds, this takes linear time and little memory: the body stays in its file, and only as much text is kept as
may be parsed.
"""

import base64
import binascii
import mmap
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from backend.schemas.characters import MAX_FIGURES

MOST_DATA_URLS = 8 + MAX_FIGURES
_LONG = 10_000  # bytes: shorter data URLs stay where they are
_PIECE = 2**18
_START, _QUOTE, _ESCAPE = b'"data:', b'"', b"\\"
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # possessive: without places to go back to, which take memory


class TextTooLong(Exception):
    """The body has more text beside data URLs than may be parsed."""


@dataclass(frozen=True)
class DataUrl:
    """A data URL in a file with JSON, from byte `start` to `end`."""

    body: Path
    start: int
    end: int

    def head(self, num_bytes: int) -> str:
        """Its first bytes as text."""
        with self.body.open("rb") as file:
            file.seek(self.start)
            return _plain(file.read(min(num_bytes, self.end - self.start))).decode("ascii", "replace")

    def decode(self, file: BinaryIO) -> None:
        """Writes what stands after its comma, decoded from base64. Raises: ValueError."""
        decode_pieces(self._pieces(), file)

    def _pieces(self) -> Iterator[bytes]:
        with self.body.open("rb") as file:
            file.seek(self.start)
            left, is_head, kept = self.end - self.start, True, b""
            while left > 0:
                piece = file.read(min(_PIECE, left))
                left -= len(piece)
                piece = kept + piece
                kept = piece[-1:] if left and piece.endswith(_ESCAPE) else b""  # its slash comes with the next piece
                piece = _plain(piece[: len(piece) - len(kept)])
                if is_head:
                    piece, is_head = piece.partition(b",")[2], False
                yield piece


def cut_data_urls(body: Path, max_bytes: int) -> tuple[bytes, dict[str, DataUrl]]:
    """The JSON with a short text in place of each long data URL, and the data URLs by these texts.

    Raises: TextTooLong if more than `max_bytes` are left.
    """
    if not body.stat().st_size:
        return b"", {}
    with body.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        return _cut(whole, body, max_bytes)


def _cut(whole: mmap.mmap, body: Path, max_bytes: int) -> tuple[bytes, dict[str, DataUrl]]:
    mark, cut, text, done = secrets.token_hex(8), dict[str, DataUrl](), bytearray(), 0

    def keep(end: int) -> None:
        nonlocal done
        if len(text) + end - done > max_bytes:
            raise TextTooLong
        text.extend(whole[done:end])
        done = end

    while (start := whole.find(_QUOTE, done, done + max_bytes + 1)) >= 0:
        keep(start)
        if (end := _end_of_data_url(whole, start)) and len(cut) < MOST_DATA_URLS:
            name = f"data:{mark}-{len(cut)}"
            cut[name] = DataUrl(body, start + 1, end)
            text.extend(f'"{name}"'.encode())
            done = end + 1
        elif found := _STRING.match(whole, start, start + max_bytes + 2):
            keep(found.end())
        else:
            break
    keep(len(whole))
    return bytes(text), cut


def _end_of_data_url(whole: mmap.mmap, start: int) -> int:
    """Where the long data URL ends that begins with the quotation mark at `start`; 0 if none does."""
    if whole[start : start + len(_START)] != _START:
        return 0
    end = whole.find(_QUOTE, start + len(_START))
    return end if end - start > _LONG and whole[end - 1 : end] != _ESCAPE else 0


def decode_pieces(pieces: Iterable[bytes], file: BinaryIO) -> None:
    """Writes what the pieces of base64 together stand for. Raises: ValueError."""
    kept, is_over = b"", False
    for piece in pieces:
        piece = kept + piece
        whole = len(piece) - len(piece) % 4
        kept = piece[whole:]
        if is_over and piece:
            raise ValueError("text after the end")
        is_over = piece[:whole].endswith(b"=")
        file.write(_decoded(piece[:whole]))
    file.write(_decoded(kept))


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _plain(text: bytes) -> bytes:
    """JSON may have a backslash before a slash."""
    return text.replace(b"\\/", b"/")
