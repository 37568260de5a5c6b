"""Open a SQLite file that several threads and processes share. Does not depend on the tables."""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from backend.errors import DataFolderError


class Database:
    """A SQLite file. Each statement, or each block of `_transaction`, is one transaction."""

    _wait_seconds = 10.0  # the longest wait for another process's write
    # Parts of the error message for a file that cannot be used: the purpose of the file, and the suggested action.
    _use = ""
    _fix = "move it away, or choose another folder with --data-dir"

    def __init__(self, path: Path):
        """Open or create the file. Raises: DataFolderError."""
        self._lock = threading.Lock()
        opened = None
        try:
            opened = sqlite3.connect(path, timeout=self._wait_seconds, check_same_thread=False, isolation_level=None)
            opened.row_factory = sqlite3.Row
            self._database = opened
            self._prepare()
        except sqlite3.Error as error:
            if opened is not None:
                opened.close()
            what = f"{path} cannot be used{self._use} ({error}):"
            raise DataFolderError(what, "it must be a writable SQLite file", self._fix) from error

    def _prepare(self) -> None:
        """Create missing tables. Raises: sqlite3.Error."""

    def close(self) -> None:
        """Close the file. It cannot be used afterwards."""
        with self._lock:
            self._database.close()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        """Run the block as one transaction. Undo its changes after an error."""
        with self._lock, self._begin_transaction():
            yield self._database

    @contextmanager
    def _begin_transaction(self) -> Generator[None]:
        """Run the block in a transaction. The caller must hold the lock."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _rows(self, sql: str, values: tuple | dict = ()) -> list[sqlite3.Row]:
        with self._lock:
            return self._database.execute(sql, values).fetchall()
