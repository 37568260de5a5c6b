"""How many bytes the folders of jobs take, and which of their files only work in progress needs."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.schemas.shots import FOLDER, FRAMES

PREVIEWS = "previews"
_SHOT = re.compile(rf"^{FOLDER}/\d+/")  # a storyboard's shots have the files of a job, each in a folder of its own


@dataclass(frozen=True, kw_only=True)
class Size:
    """The bytes of a job's folder: files that only work in progress needs, and the rest."""

    intermediate: int = 0
    rest: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.intermediate + self.rest


def folder_size(folder: Path) -> Size:
    """The bytes of a job's folder, or of any other; nothing if there is none."""
    found = [(is_intermediate(name), status.st_size) for name, status in files_below(folder)]
    intermediate = sum(size for is_of_work, size in found if is_of_work)
    return Size(intermediate=intermediate, rest=sum(size for _, size in found) - intermediate)


def is_intermediate(name: str) -> bool:
    """Whether this file of a job's folder, by its name there, is of no use once the job has ended."""
    name = _SHOT.sub("", name)
    is_stage = (name.startswith("stage") and name.endswith((".safetensors", ".wav", ".mp4", ".json"))) or name == FRAMES
    return is_stage or name.startswith(f"{PREVIEWS}/") or name == ".lock" or (name.startswith(".") and name.endswith(".part"))


def files_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The files below a folder, by their names there; those that go meanwhile are left out."""
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
