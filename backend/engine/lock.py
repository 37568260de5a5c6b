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
    def __init__(self, folder: Path):
        """Create and lock the file. Raises: DataFolderError if the folder cannot be written."""
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = folder
        try:
            self._file = (folder / self.name).open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            what, fix = f"{folder} cannot be written ({error.strerror}):", "choose another with --data-dir"
            raise DataFolderError(what, "the data folder must be writable", fix) from error

    @contextmanager
    def lock_dead_engine(self, name: str) -> Generator[bool]:
        """Yield whether engine `name` is dead. Keep its lock in the block, so that only one engine adopts the jobs."""
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
        for path in self._folder.iterdir():
            try:
                if path.name != self.name:
                    with path.open("r") as file:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # the engine has just ended and deleted the file
                continue
        return True

    def remove_dead(self) -> None:
        for path in self._folder.iterdir():
            if path.is_file() and path.name != self.name and time.time() - path.stat().st_mtime > _NEW_SECONDS:
                with self.lock_dead_engine(path.name):
                    pass

    def release(self) -> None:
        (self._folder / self.name).unlink(missing_ok=True)
        self._file.close()
