"""Detect which engines are alive. Each engine locks a file, and the system releases the lock when the engine dies."""

import fcntl
import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from backend.errors import DataFolderError

_NEW_SECONDS = 3600.0  # newer lock files are kept even if unlocked, because their engine may be about to lock them


class EngineLock:
    """The lock file of one engine, with a unique name."""

    def __init__(self, folder: Path):
        """Create and lock the file. Raises: DataFolderError if the folder cannot be written."""
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
        """Yield whether engine `name` is dead.

        This process locks a dead engine's file until the `with` statement ends, so that only one engine adopts the jobs.
        """
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
        """Return whether no other engine is alive in this data folder."""
        return not any(_is_locked(path) for path in self._folder.iterdir() if path.name != self.name)

    def remove_dead(self) -> None:
        """Delete the lock files of dead engines."""
        for path in self._folder.iterdir():
            if path.is_file() and path.name != self.name and time.time() - path.stat().st_mtime > _NEW_SECONDS:
                with self.lock_dead_engine(path.name):
                    pass

    def release(self) -> None:
        """Delete this engine's lock file and release its lock."""
        (self._folder / self.name).unlink(missing_ok=True)
        self._file.close()


def _is_locked(path: Path) -> bool:
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the engine has just ended and deleted the file
        return False
    return False
