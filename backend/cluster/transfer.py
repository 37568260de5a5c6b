"""A job's files on their way between the studio and a worker on another machine: in pieces, under names that are checked.

Knows neither Ray nor any other transport.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from backend.files import sync
from backend.schemas.shots import FOLDER, FRAMES
from backend.workers.messages import Message, decode, encode

PIECE_BYTES = 4 * 2**20
NOT_SENT = re.compile(rf"({FOLDER}/\d+/)?stage3_frames\.safetensors|live/video\.mp4|{FOLDER}/\d+/{re.escape(FRAMES)}")
"""Large files that are written again and again, or only spare seconds: a worker elsewhere does that part again."""
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}"
_SHOT = rf"{FOLDER}/\d{{1,3}}"  # a storyboard's shot has the files of a job, in a folder of its own
_NAME = re.compile(rf"({_SHOT}/)?{_PART}(/{_PART})?")
_FOLDER = re.compile(rf"{_PART}|{_SHOT}(/{_PART})?")

Version = tuple[int, int, int]  # of a file: when it was written, its size, its number on the disk


@dataclass(frozen=True, kw_only=True)
class Piece:
    """At most `PIECE_BYTES` of one of a job's files, in order; or, with `is_gone`, the news that the file is no longer there."""

    job_id: str
    name: str
    data: bytes = b""
    is_first: bool = True
    is_last: bool = True
    is_gone: bool = False


def check_name(name: str) -> str:
    """The name of a file in a job's folder, in a folder there, or of one of its shots. Raises: ValueError if it could lead
    elsewhere or is hidden."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.120} must be the name of a file in the job's folder")
    return name


def list_files(folder: Path) -> dict[str, Version]:
    """The files that travel, by name, each with its version; without hidden ones, links and `NOT_SENT`."""
    found: dict[str, Version] = {}
    _collect(folder, "", found)
    return found


def _collect(folder: Path, above: str, found: dict[str, Version]) -> None:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        name = above + entry.name
        try:
            if entry.is_dir(follow_symlinks=False) and _FOLDER.fullmatch(name):
                _collect(folder / entry.name, f"{name}/", found)
            elif not NOT_SENT.fullmatch(name) and _NAME.fullmatch(name):
                status = entry.stat(follow_symlinks=False)
                if S_ISREG(status.st_mode):
                    found[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except FileNotFoundError:  # it has just been replaced or removed
            continue


def read_pieces(job_id: str, folder: Path, name: str) -> Iterator[Piece]:
    """The file's pieces as it is when the first is asked for; nothing if it is no longer there."""
    try:
        file = (folder / name).open("rb")
    except FileNotFoundError:
        return
    with file:
        left, is_first = os.fstat(file.fileno()).st_size, True
        while is_first or left:
            data = file.read(min(PIECE_BYTES, left))
            left = left - len(data) if data else 0
            yield Piece(job_id=job_id, name=name, data=data, is_first=is_first, is_last=not left)
            is_first = False


class Changes:
    """What has changed in a job's folder since it was looked at last; at first, since this was made."""

    def __init__(self, job_id: str, folder: Path):
        self._job_id, self._folder = job_id, folder
        self._known = list_files(folder)

    def collect(self) -> list[Iterator[Piece]]:
        """The pieces of each file that is new or another one, and the news of those that have gone."""
        before, self._known = self._known, list_files(self._folder)
        changed = [name for name, version in self._known.items() if before.get(name) != version]
        gone = [Piece(job_id=self._job_id, name=name, is_gone=True) for name in before.keys() - self._known.keys()]
        return [*(read_pieces(self._job_id, self._folder, name) for name in changed), iter(gone)]


class Inbox:
    """Puts the pieces that arrive for one job together in its folder: a file appears whole or not at all."""

    def __init__(self, folder: Path):
        self._folder = folder

    def take(self, piece: Piece) -> None:
        """Writes one piece. Raises: ValueError for a name that may not be, OSError."""
        path = self._folder / check_name(piece.name)
        if piece.is_gone:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(exist_ok=True, parents=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("wb" if piece.is_first else "ab") as file:
            file.write(piece.data)
        if piece.is_last:
            if "previews/" not in piece.name:  # those may be lost in a power cut
                sync(part)
            os.replace(part, path)


def move_message_paths(message: Message, before: str, now: str) -> Message:
    """The message with its paths as by `moved`."""
    return decode(move_paths(encode(message), before, now))


def move_paths(value: object, before: str, now: str) -> Any:
    """A JSON value in which every name of the folder `before`, or of a file in it, is one in the folder `now`."""
    if isinstance(value, str):
        return now + value[len(before) :] if value == before or value.startswith(f"{before}/") else value
    if isinstance(value, list):
        return [move_paths(one, before, now) for one in value]
    if isinstance(value, dict):
        return {key: move_paths(one, before, now) for key, one in value.items()}
    return value
