"""Detect that a file has changed since it was read, and that two files have equal bytes. Reads no tensors."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.tensors import LARGEST_HEADER

_BEGINNING = 1 << 16  # bytes read from the start of a file that is not a safetensors file
_SHA256 = re.compile(r"[0-9a-f]{64}")  # in the Hub's cache, files are named by the hash of their bytes


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The state of a file: its path (links followed), size in bytes, time of the last change (nanoseconds) and a hash of its
    beginning.

    The beginning of a safetensors file is its whole header.
    """

    path: Path
    size: int
    changed: int
    beginning: str


def fingerprint_file(path: Path) -> Fingerprint:
    """Return the file's current fingerprint. Raises: OSError."""
    real = path.resolve(strict=True)
    status = real.stat()
    with real.open("rb") as file:
        length = _BEGINNING
        if path.suffix == ".safetensors":
            length = min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER)
        beginning = hashlib.sha256(file.read(length)).hexdigest()
    return Fingerprint(path=real, size=status.st_size, changed=status.st_mtime_ns, beginning=beginning)


def fingerprint_files(paths: Iterable[Path]) -> tuple[Fingerprint, ...]:
    """Return the fingerprints of files, in the order of `paths`. Raises: OSError."""
    return tuple(map(fingerprint_file, paths))


def is_unchanged(fingerprints: Sequence[Fingerprint]) -> bool:
    """Return whether no file has changed since its fingerprint was computed."""
    try:
        return all(fingerprint_file(fingerprint.path) == fingerprint for fingerprint in fingerprints)
    except OSError:
        return False


def have_equal_bytes(one: Sequence[Fingerprint], other: Sequence[Fingerprint]) -> bool:
    """Return whether each file of `one` has the same bytes as the file at the same position of `other`.

    Two files with equal sizes and beginnings are compared byte by byte. If their names are hashes, only the names are compared.
    """
    return len(one) == len(other) and all(map(_have_equal_bytes, one, other))


def _have_equal_bytes(one: Fingerprint, other: Fingerprint) -> bool:
    if one == other:
        return True
    if one.path == other.path or (one.size, one.beginning) != (other.size, other.beginning):
        return False
    if _SHA256.fullmatch(one.path.name) and _SHA256.fullmatch(other.path.name):
        return one.path.name == other.path.name
    try:
        alike = os.path.samefile(one.path, other.path) or filecmp.cmp(one.path, other.path, shallow=False)
    except OSError:
        return False
    return alike and is_unchanged((one, other))
