"""Detect that a file has changed since it was read, and that two files have equal bytes. Reads no tensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.tensors import LARGEST_HEADER
from backend.files import have_same_content

_BEGINNING = 1 << 16  # bytes read from the start of a file that is not a safetensors file
_SHA256 = re.compile(r"[0-9a-f]{64}")  # in the Hub's cache, files are named by the hash of their bytes


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The state of a file. `path` has no links, `changed` is in nanoseconds, `beginning` is a hash (of a safetensors header)."""

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
    return tuple(map(fingerprint_file, paths))


def is_unchanged(fingerprints: Sequence[Fingerprint]) -> bool:
    """Return whether no file has changed since its fingerprint was computed."""
    try:
        return all(fingerprint_file(fingerprint.path) == fingerprint for fingerprint in fingerprints)
    except OSError:
        return False


def have_equal_bytes(one: Sequence[Fingerprint], other: Sequence[Fingerprint]) -> bool:
    """Return whether each file of `one` has the same bytes as the file at the same position of `other`.

    Files with equal sizes and beginnings are compared byte by byte, or by their names, if the names are hashes.
    """
    if len(one) != len(other):
        return False
    for pair in zip(one, other, strict=True):
        mine, theirs = pair
        if mine == theirs:
            continue
        if mine.path == theirs.path or (mine.size, mine.beginning) != (theirs.size, theirs.beginning):
            return False
        if all(_SHA256.fullmatch(file.path.name) for file in pair):
            if mine.path.name != theirs.path.name:
                return False
            continue
        try:
            if not have_same_content(mine.path, theirs.path):
                return False
        except OSError:
            return False
        if not is_unchanged(pair):
            return False
    return True
