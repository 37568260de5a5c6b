"""Writes files that appear whole or not at all, locks folders, and hashes files."""

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

GIT_DIGITS = 40


@contextmanager
def replacing(path: Path, *, is_durable: bool = False) -> Generator[Path]:
    """Gives a file beside `path`, which takes its place if the block succeeds and is removed if it fails. If it is durable, it
    survives a power cut from then on."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        if is_durable:
            sync(part)
        os.replace(part, path)
        if is_durable:
            sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def remove_half_written(folder: Path) -> None:
    """Removes what processes that were killed inside `replacing` have left below this folder. No other may write there now."""
    for part in folder.rglob(".*.part"):
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until the disk has this file, or the names in this folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether this error, or the one behind it, says that the disk is full. Libraries have their own kinds for it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        text = str(error)
        if "No space left on device" in text or "os error 28" in text or "disk is full" in text:
            return True
        error = error.__cause__
    return False


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Waits until no other process makes the video in this folder: one whose server has died may still be keeping its work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hash_like(path: Path, expected: str) -> str:
    """The file's hash, of the same kind as `expected`: SHA-256, or git's name for it, the SHA-1 of its size and content."""
    is_git = len(expected) == GIT_DIGITS
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode()) if is_git else hashlib.sha256()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()
