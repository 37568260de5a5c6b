"""Open a SQLite file that several threads and processes share, and migrate its tables. Does not depend on the tables."""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from backend.errors import DataFolderError

_WAIT_SECONDS = 2.0  # the longest wait for another process's write, which takes milliseconds
_MIGRATION_WAIT_SECONDS = 30.0  # the longest wait for another process's migration
_COMMENT = re.compile(r" /\*.*?\*/")
_VERSION = "PRAGMA user_version"
_MOST_LOG_BYTES = 64 * 2**20  # SQLite cuts its write-ahead log to this size after copying it to the database

Migration = Callable[[sqlite3.Connection], object]
"""A change of a file's tables and rows. It must not end its transaction: `executescript` would."""


def migrate(database: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Run the migrations that the file at `path` does not have. Its `user_version` is the number of migrations that it has.

    Each migration is one transaction, so after a crash the file has the tables of one version. Never change or remove a
    migration, append another one.

    Raises: sqlite3.Error; DataFolderError if a newer version of the studio has migrated the file.
    """
    while (version := database.execute(_VERSION).fetchone()[0]) < len(migrations):
        with begin_transaction(database):
            # Otherwise another process ran this migration during the wait.
            if database.execute(_VERSION).fetchone()[0] == version:
                migrations[version](database)
                database.execute(f"PRAGMA user_version = {version + 1}")
    if version > len(migrations):
        what = f"{path} has version {version} of its tables, from a newer studio;"
        rule = f"this studio reads versions up to {len(migrations)}"
        raise DataFolderError(what, rule, "update the studio, or choose another folder with --data-dir")


def execute_all(database: sqlite3.Connection, statements: str) -> None:
    """Execute SQL statements that end with semicolons. Unlike `executescript`, do not end the transaction.

    Comments are removed. Otherwise SQLite would store them with the tables, and could then not drop some columns.
    """
    for statement in _COMMENT.sub("", statements).split(";"):
        database.execute(statement)


def create_missing(database: sqlite3.Connection, tables: str) -> None:
    """Create the tables and columns of `tables`, SQL statements, that the file lacks.

    The first migration of a file uses this function, because earlier versions of the studio wrote no `user_version`.
    """
    execute_all(database, tables)
    with closing(sqlite3.connect(":memory:")) as complete:
        execute_all(complete, tables)
        for (table,) in complete.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            known = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            for _, column, kind, is_required, default, _ in complete.execute(f"PRAGMA table_info({table})"):
                if column not in known:
                    rule = f"NOT NULL DEFAULT {default}" if is_required else ""
                    database.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind} {rule}")


@contextmanager
def begin_transaction(database: sqlite3.Connection) -> Generator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


class Database:
    """The SQLite file of a data folder. Each statement, or each block of `transaction`, is one transaction."""

    def __init__(self, path: Path, migrations: Sequence[Migration]):
        """Open or create the file, and migrate it. Raises: DataFolderError."""
        self._lock = threading.Lock()
        opened = None
        try:
            opened = sqlite3.connect(path, timeout=_MIGRATION_WAIT_SECONDS, check_same_thread=False, isolation_level=None)
            opened.row_factory = sqlite3.Row
            self._database = opened
            last_try = time.monotonic() + _WAIT_SECONDS
            while True:
                try:
                    opened.execute("PRAGMA journal_mode=WAL")
                    break
                except sqlite3.OperationalError:  # SQLite refuses at once while another process is switching the file, so retry
                    if time.monotonic() > last_try:
                        raise
                    time.sleep(0.01)
            opened.execute("PRAGMA synchronous=NORMAL")  # WAL keeps the file intact; see `transaction` for power cuts
            opened.execute(f"PRAGMA journal_size_limit={_MOST_LOG_BYTES}")
            # All pages are checked now, not when they are first read.
            [(verdict,)] = opened.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                raise sqlite3.DatabaseError(f"it is damaged: {verdict}")
            migrate(opened, path, migrations)
            opened.execute(f"PRAGMA busy_timeout={1000 * _WAIT_SECONDS:.0f}")
        except (sqlite3.Error, DataFolderError) as error:
            if opened is not None:
                opened.close()
            if isinstance(error, DataFolderError):
                raise
            what = f"{path} cannot be used as job store ({error}):"
            fix = "move it and its -wal and -shm files away (the videos stay in runs), or choose another folder with --data-dir"
            raise DataFolderError(what, "it must be a writable SQLite file", fix) from error

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def transaction(self, *, is_durable: bool = False) -> Generator[sqlite3.Connection]:
        """Run the block as one transaction. Undo its changes after an error.

        With `is_durable`, a power cut cannot lose the transaction once it has ended. Writes of progress events are not durable,
        because they are frequent.
        """
        with self._lock:
            if is_durable:
                self._database.execute("PRAGMA synchronous=FULL")
            try:
                with begin_transaction(self._database):
                    yield self._database
            finally:
                if is_durable:
                    self._database.execute("PRAGMA synchronous=NORMAL")

    def rows(self, sql: str, values: tuple | dict = ()) -> list[sqlite3.Row]:
        with self._lock:
            return self._database.execute(sql, values).fetchall()

    def execute(self, sql: str, values: tuple) -> int:
        """Run one statement in a transaction. Return the number of changed rows."""
        with self.transaction() as database:
            return database.execute(sql, values).rowcount
