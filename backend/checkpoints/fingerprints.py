"""What shows that a file has changed since it was read, and whether two files hold the same bytes. Reads no tensors."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.tensors import LARGEST_HEADER

_BEGINNING = 1 << 16  # bytes that are looked at of a file which is not safetensors
_SHA256 = re.compile(r"[0-9a-f]{64}")  # the names of the Hub's files in its cache are the digests of their bytes


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A file as it was: where it lies (links followed), its size in bytes, when it was changed (nanoseconds), and a digest of its
    beginning: of the whole header if it is a safetensors file."""

    path: Path
    size: int
    changed: int
    beginning: str


def fingerprint_file(path: Path) -> Fingerprint:
    """The file as it is now. Raises: OSError."""
    real = path.resolve(strict=True)
    found = real.stat()
    with real.open("rb") as file:
        length = _BEGINNING
        if path.suffix == ".safetensors":
            length = min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER)
        beginning = hashlib.sha256(file.read(length)).hexdigest()
    return Fingerprint(path=real, size=found.st_size, changed=found.st_mtime_ns, beginning=beginning)


def fingerprint_files(paths: Iterable[Path]) -> tuple[Fingerprint, ...]:
    """Those of several files, in this order. Raises: OSError."""
    return tuple(map(fingerprint_file, paths))


def is_unchanged(fingerprints: Sequence[Fingerprint]) -> bool:
    """Whether all these files are as they were."""
    try:
        return all(fingerprint_file(fingerprint.path) == fingerprint for fingerprint in fingerprints)
    except OSError:
        return False


def hold_the_same(one: Sequence[Fingerprint], other: Sequence[Fingerprint]) -> bool:
    """Whether these files, as they were, hold the same bytes one by one. Files that are not known to be the same are read and
    compared, if their sizes and beginnings allow it."""
    return len(one) == len(other) and all(map(_is_same, one, other))


def _is_same(one: Fingerprint, other: Fingerprint) -> bool:
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
