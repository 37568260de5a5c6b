"""Write files atomically, lock folders, and hash files."""

import errno
import fcntl
import filecmp
import hashlib
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

GIT_DIGITS = 40


@contextmanager
def replace_file(path: Path, *, is_durable: bool = False) -> Generator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds and is deleted if it fails.

    With `is_durable`, the new file survives a power cut.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        if is_durable:
            flush_to_disk(part)
        os.replace(part, path)
        if is_durable:
            flush_to_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)


def remove_half_written(folder: Path) -> None:
    """Delete temporary files that killed processes left below this folder. No process may write into the folder meanwhile."""
    for part in folder.rglob(".*.part"):
        part.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link_or_copy(source: Path, place: Path) -> None:
    """Link a file that never changes to another path, or copy it if links are not possible. Raises: OSError."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)


def have_same_content(one: Path, other: Path) -> bool:
    return one.samefile(other) or filecmp.cmp(one, other, shallow=False)


def read_text(path: Path) -> str:
    """Read a text file, "" if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether the error or any of its causes means that the disk is full. Libraries report this with different errors."""
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
    """Lock a job's folder during the block. First wait for other processes: a dead server's worker may still save its work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hash_file(path: Path, expected: str) -> str:
    """Return the hash of the file, of the same kind as `expected`: SHA-256, or git's blob hash (SHA-1 of size and content)."""
    is_git = len(expected) == GIT_DIGITS
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode()) if is_git else hashlib.sha256()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()
