"""The hashes by which the Hugging Face Hub names a file's content."""

from __future__ import annotations

import hashlib
from pathlib import Path

CHUNK_BYTES = 2**24
GIT_DIGITS = 40


def hash_like(path: Path, expected: str) -> str:
    """The file's hash of the kind that `expected` is: SHA-256, or what git names it by, SHA-1 of its size and content."""
    is_git = len(expected) == GIT_DIGITS
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode()) if is_git else hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
