"""Writes files that appear whole or not at all, and hashes files."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 2**24
GIT_DIGITS = 40


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a file beside `path`, which takes its place if the block succeeds and is removed if it fails."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def hash_like(path: Path, expected: str) -> str:
    """The file's hash, of the same kind as `expected`: SHA-256, or git's name for it, the SHA-1 of its size and content."""
    is_git = len(expected) == GIT_DIGITS
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode()) if is_git else hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
