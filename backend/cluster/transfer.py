"""Transfer a job's files between the studio and a worker on another machine, in pieces and under checked names."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from backend.files import flush_to_disk
from backend.schemas.shots import FOLDER, FRAMES

PIECE_BYTES = 4 * 2**20
NOT_SENT = re.compile(rf"({FOLDER}/\d+/)?stage3_frames\.safetensors|live/video\.mp4|{FOLDER}/\d+/{re.escape(FRAMES)}")
"""The names of files that are not transferred. These files are large, and they are rewritten often or save only seconds of work.

A worker on another machine repeats this work.
"""
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}"
_SHOT = rf"{FOLDER}/\d{{1,3}}"  # each shot of a storyboard has a folder with the same files as a job
_NAME = re.compile(rf"({_SHOT}/)?{_PART}(/{_PART})?")
_FOLDER = re.compile(rf"{_PART}|{_SHOT}(/{_PART})?")

Version = tuple[int, int, int]  # a file's modification time in ns, size in bytes and inode


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of a job's file with at most `PIECE_BYTES` bytes. Pieces arrive in order. `is_gone`: the file was deleted."""

    job_id: str
    name: str
    data: bytes = b""
    is_first: bool = True
    is_last: bool = True
    is_gone: bool = False


def check_name(name: str) -> str:
    """Return the name if it is a valid relative path of a file in a job's folder, and not hidden. Raises: ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.120} must be the name of a file in the job's folder")
    return name


def list_files(folder: Path, above: str = "") -> dict[str, Version]:
    """Return the version of each file to transfer, by file name, without hidden files, links and `NOT_SENT`."""
    versions: dict[str, Version] = {}
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return versions
    for entry in entries:
        name = above + entry.name
        try:
            if entry.is_dir(follow_symlinks=False) and _FOLDER.fullmatch(name):
                versions |= list_files(folder / entry.name, f"{name}/")
            elif not NOT_SENT.fullmatch(name) and _NAME.fullmatch(name):
                status = entry.stat(follow_symlinks=False)
                if S_ISREG(status.st_mode):
                    versions[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except FileNotFoundError:  # the entry was replaced or removed since the scan
            continue
    return versions


def read_pieces(job_id: str, folder: Path, name: str) -> Iterator[Piece]:
    """Yield the pieces of a file, without bytes that are appended later. Yield nothing if the file does not exist."""
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
    """Finds changes in a job's folder. Each `collect` returns the changes since the previous call or since construction."""

    def __init__(self, job_id: str, folder: Path):
        self._job_id, self._folder = job_id, folder
        self._known = list_files(folder)

    def collect(self) -> list[Iterator[Piece]]:
        before, self._known = self._known, list_files(self._folder)
        changed = [name for name, version in self._known.items() if before.get(name) != version]
        gone = [Piece(job_id=self._job_id, name=name, is_gone=True) for name in before.keys() - self._known.keys()]
        return [*(read_pieces(self._job_id, self._folder, name) for name in changed), iter(gone)]


def write_piece(folder: Path, piece: Piece) -> None:
    """Write a received piece. A file appears only when it is complete. Raises: ValueError for an invalid name, OSError."""
    path = folder / check_name(piece.name)
    if piece.is_gone:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True, parents=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb" if piece.is_first else "ab") as file:
        file.write(piece.data)
    if piece.is_last:
        if "previews/" not in piece.name:  # previews are not flushed, because a lost preview does no harm
            flush_to_disk(part)
        os.replace(part, path)


def move_paths(value: object, before: str, now: str) -> Any:
    """Replace the folder `before` by the folder `now` in all paths of a JSON value."""
    if isinstance(value, str):
        return now + value[len(before) :] if value == before or value.startswith(f"{before}/") else value
    if isinstance(value, list):
        return [move_paths(one, before, now) for one in value]
    if isinstance(value, dict):
        return {key: move_paths(one, before, now) for key, one in value.items()}
    return value
