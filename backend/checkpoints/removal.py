"""Remove a checkpoint or a file from the Hub's cache, except files that another source needs or that other tools downloaded.

The cache stores each file once, under the hash of its content, with a link from a folder for each commit. The content is deleted
with its last link.
"""

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

from huggingface_hub.utils import filter_repo_objects

from backend.checkpoints.hub import file_patterns
from backend.checkpoints.hub_file import blobs_folder, delete_unfinished
from backend.errors import ModelError


def remove(source: str, kept: Collection[str]) -> int:
    """Delete the files that `source` needs and no source in `kept` needs. Return the freed bytes. Raises: ModelError."""
    freed = 0
    for repository, patterns in file_patterns(source).items():
        others = [pattern for other in kept for pattern in file_patterns(other).get(repository, ())]
        try:
            folder = blobs_folder(repository).parent
            before = _count_bytes(folder)
            removed = [
                path for path in _list_files(folder) if _matches(path, patterns) and not (others and _matches(path, others))
            ]
            contents = {path.resolve() for path in removed if path.is_symlink()}
            for path in removed:
                path.unlink()
            left = {path.resolve() for path in _list_files(folder)}
            for content in contents - left:
                if content.is_relative_to(folder.resolve()):
                    content.unlink(missing_ok=True)
            if not others:
                delete_unfinished(repository, set())
            is_empty = not left and not any(blobs_folder(repository).glob("*"))
            if is_empty:
                shutil.rmtree(folder, ignore_errors=True)
            for path in [] if is_empty else sorted((folder / "snapshots").rglob("*"), reverse=True):
                if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                    path.rmdir()
            freed += before - _count_bytes(folder)
        except OSError as error:
            fix = "check who owns the files in the Hub's cache"
            raise ModelError(f"{source} cannot be removed", f"({error.strerror or error})", fix) from error
    return freed


def _list_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "snapshots").glob("*/**/*") if path.is_symlink() or path.is_file()]


def _matches(path: Path, patterns: Collection[str]) -> bool:
    """Return whether the file's path in its repository matches one of the patterns."""
    commit = next(parent for parent in path.parents if parent.parent.name == "snapshots")
    name = path.relative_to(commit).as_posix()
    return any(filter_repo_objects([name], allow_patterns=list(patterns)))


def _count_bytes(folder: Path) -> int:
    num_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                num_bytes += path.stat().st_size
    return num_bytes
