"""Reads the boxes of an mp4 file: finds boxes, reads the comment, sets the display size. Decodes no video."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

MAX_COMMENT_BYTES = 1 << 20
MOST_BOXES = 5000  # number of boxes after which a search ends; our largest files have a few dozen boxes
# Number of bytes (a version, flags or a count) between the header of a box of this kind and its first inner box.
_CONTAINERS_SKIP = {b"meta": 4, b"stsd": 8}
_TRACK_HEADER = (b"moov", b"trak", b"tkhd")
_SAMPLE_ENTRY = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1")
_COMMENT = (b"moov", b"udta", b"meta", b"ilst", b"\xa9cmt", b"data")
# Other programs, such as ComfyUI, write tags with names of their choice. The box "keys" lists the names. The box "ilst" has a box
# for each value, whose kind is the number of the name in "keys", counted from 1. Source: QuickTime File Format, "Metadata item
# keys atom". ffmpeg writes such tags with `-movflags use_metadata_tags`.
_TAGS = (b"moov", b"udta", b"meta")


@dataclass(frozen=True, kw_only=True)
class Box:
    """Start and end of the content are in bytes of the file."""

    kind: bytes
    start: int
    end: int


def read_comment(path: Path) -> str | None:
    """None if the comment is missing, not text or too long."""
    with path.open("rb") as file:
        box = next(find_boxes(file, _COMMENT), None)
        if box is None and (names := next(find_boxes(file, (*_TAGS, b"keys")), None)):
            # skip the version and the count, 4 bytes each
            for number, entry in enumerate(islice(_read_boxes(file, names.start + 8, names.end), MOST_BOXES), 1):
                file.seek(entry.start)
                if entry.end - entry.start == 7 and file.read(7) == b"comment":
                    box = next(find_boxes(file, (*_TAGS, b"ilst", struct.pack(">I", number), b"data")), None)
                    break
        if box is None or not 8 <= box.end - box.start <= MAX_COMMENT_BYTES:
            return None
        file.seek(box.start + 8)  # skip the type and the locale of the data, 4 bytes each
        content = file.read(box.end - box.start - 8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def set_shown_size(path: Path, width: int, height: int) -> None:
    """Write the display size in pixels into the track and its H.264 sample entry. Source: ISO/IEC 14496-12. The last 8 bytes of a
    track header are the width and the height, 16.16 fixed-point numbers (8.3.2). The bytes 24 to 27 of a sample entry are the
    width and the height, integers of 16 bits (12.1.3)."""
    with path.open("r+b") as file:
        for box in list(find_boxes(file, _TRACK_HEADER)):
            file.seek(box.end - 8)
            file.write(struct.pack(">II", width << 16, height << 16))
        for box in list(find_boxes(file, _SAMPLE_ENTRY)):
            file.seek(box.start + 24)
            file.write(struct.pack(">HH", width, height))


def is_mp4(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8)[4:] == b"ftyp"


def find_boxes(
    file: BinaryIO, kinds: tuple[bytes, ...], start: int = 0, end: int | None = None, visits: Iterator[int] | None = None
) -> Iterator[Box]:
    """Yield all boxes at this path between the bytes `start` and `end`. `kinds` is the path: the kind of the outermost box, then
    the kind of a box inside, and so on. `visits` has one item for each box that may still be visited. Safe for any file: invalid
    data ends the search."""
    end = file.seek(0, 2) if end is None else end
    visits = iter(range(MOST_BOXES)) if visits is None else visits
    for box in _read_boxes(file, start, end):
        if next(visits, None) is None:
            return
        if box.kind != kinds[0]:
            continue
        if len(kinds) == 1:
            yield box
        else:
            yield from find_boxes(file, kinds[1:], box.start + _CONTAINERS_SKIP.get(box.kind, 0), box.end, visits)


def _read_boxes(file: BinaryIO, start: int, end: int) -> Iterator[Box]:
    while start + 8 <= end:
        file.seek(start)
        length, kind = struct.unpack(">I4s", file.read(8))
        header = 8
        if length == 1:
            header, extended = 16, file.read(8)
            length = int.from_bytes(extended) if len(extended) == 8 else 0
        elif length == 0:
            length = end - start
        if length < header or start + length > end:
            return
        yield Box(kind=kind, start=start + header, end=start + length)
        start += length
