"""Shows which engines are alive: each locks a file of its own, and the system frees the lock when the engine dies."""

import fcntl
import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from backend.errors import DataFolderError

_NEW_SECONDS = 3600.0  # an engine that has just made its file may not have locked it yet


class EngineLock:
    """The life sign of one engine, under a name of its own."""

    def __init__(self, folder: Path):
        """Raises: DataFolderError if the folder cannot be written."""
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = folder
        try:
            self._file = (folder / self.name).open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            raise DataFolderError(
                f"{folder} cannot be written ({error.strerror}):",
                "the data folder must be writable",
                "choose another with --data-dir",
            ) from error

    @contextmanager
    def lock_dead_engine(self, name: str) -> Generator[bool]:
        """Whether the engine of this name is dead; while the block runs, no other engine can take over its jobs."""
        path = self._folder / name
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
            path.unlink(missing_ok=True)

    def is_alone(self) -> bool:
        """Whether no other engine is alive in this data folder."""
        return not any(_is_locked(path) for path in self._folder.iterdir() if path.name != self.name)

    def remove_dead(self) -> None:
        """Removes the life signs that dead engines left."""
        for path in self._folder.iterdir():
            if path.is_file() and path.name != self.name and time.time() - path.stat().st_mtime > _NEW_SECONDS:
                with self.lock_dead_engine(path.name):
                    pass

    def release(self) -> None:
        """Ends this life sign."""
        (self._folder / self.name).unlink(missing_ok=True)
        self._file.close()


def _is_locked(path: Path) -> bool:
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # its engine has just ended
        return False
    return False
