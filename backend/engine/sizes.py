"""Measure the folders of jobs, and find their intermediate files, which are needed only while the job runs."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.schemas.shots import FOLDER, FRAMES

PREVIEWS = "previews"
_SHOT = re.compile(rf"^{FOLDER}/\d+/")  # each shot of a storyboard has a folder with the same files as a job


@dataclass(frozen=True, kw_only=True)
class Size:
    """The bytes of a job's folder: of intermediate files and of all other files."""

    intermediate: int = 0
    rest: int = 0

    @property
    def total(self) -> int:
        return self.intermediate + self.rest


def folder_size(folder: Path) -> Size:
    sizes = [(is_intermediate(name), status.st_size) for name, status in files_below(folder)]
    intermediate = sum(size for is_of_work, size in sizes if is_of_work)
    return Size(intermediate=intermediate, rest=sum(size for _, size in sizes) - intermediate)


def is_intermediate(name: str) -> bool:
    """Return whether this file is unneeded after the job has ended. `name` is its path in the job's folder."""
    name = _SHOT.sub("", name)
    is_stage = (name.startswith("stage") and name.endswith((".safetensors", ".wav", ".mp4", ".json"))) or name == FRAMES
    return is_stage or name.startswith(f"{PREVIEWS}/") or name == ".lock" or (name.startswith(".") and name.endswith(".part"))


def files_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative path and the status of each file below a folder. Leave out files that are deleted during the scan."""
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        try:
            with os.scandir(folder / inner) as scan:
                entries = list(scan)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{inner}{entry.name}/")
                continue
            with contextlib.suppress(FileNotFoundError):
                yield f"{inner}{entry.name}", entry.stat(follow_symlinks=False)
