"""Jobs and their events in SQLite. Knows no queue and no worker; safe from several threads and processes."""

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from backend import events
from backend.errors import DataFolderError, JobNotFound
from backend.events import Event
from backend.request import GenerationRequest

JobState = Literal["queued", "running", "finished", "failed", "cancelled"]
_WAIT_SECONDS = 10.0  # for another process's write; each takes milliseconds
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, engine TEXT NOT NULL,
    request TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, started REAL, ended REAL, folder TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS jobs_by_owner ON jobs (owner, number);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
CREATE TABLE IF NOT EXISTS events (
    job_id TEXT NOT NULL REFERENCES jobs (id), sequence INTEGER NOT NULL, time REAL NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (job_id, sequence)) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request on its way. Times are seconds since the epoch, None while they have not come."""

    id: str
    owner: str
    request: GenerationRequest
    state: JobState
    created: float
    started: float | None
    ended: float | None
    folder: Path

    @property
    def has_ended(self) -> bool:
        """Whether its final event is stored."""
        return self.state not in ("queued", "running")


def new_job_id() -> str:
    """An id that sorts by time and cannot be guessed."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(12)}"


class Store:
    """The one SQLite file. Each method is one transaction."""

    def __init__(self, path: Path):
        """Opens or makes the file. Raises: DataFolderError."""
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(path, timeout=_WAIT_SECONDS, check_same_thread=False, isolation_level=None)
            self._database.row_factory = sqlite3.Row
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")  # WAL stays whole; a power cut may cost the last events
            self._database.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise DataFolderError(f"{path} cannot be used as job store ({error}):", "it must be a writable SQLite file",
                                  "move it away, or choose another folder with --data-dir") from error  # fmt: skip

    def add(self, job: Job, engine: str) -> None:
        """Stores a new job, in the hands of one engine."""
        row = (job.id, job.owner, engine, json.dumps(job.request.to_json()), job.state, job.created, str(job.folder))
        with self._transaction() as database:
            database.execute("INSERT INTO jobs (id, owner, engine, request, state, created, folder)"
                             " VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # fmt: skip

    def job(self, job_id: str) -> Job:
        """Raises: JobNotFound."""
        rows = self._rows("SELECT * FROM jobs WHERE id = ?", (job_id,))
        if not rows:
            raise JobNotFound(f"job {job_id[:60]!r}", "must be one of those in the store", "check its id")
        return _job(rows[0])

    def jobs(self, owner: str | None = None) -> list[Job]:
        """All jobs, or those of one owner, newest first."""
        where, values = ("", ()) if owner is None else ("WHERE owner = ?", (owner,))
        return [_job(row) for row in self._rows(f"SELECT * FROM jobs {where} ORDER BY number DESC", values)]

    def start(self, job_id: str) -> bool:
        """Marks a waiting job as running; False if it waits no more."""
        with self._transaction() as database:
            sql = "UPDATE jobs SET state = 'running', started = ? WHERE id = ? AND state = 'queued'"
            return database.execute(sql, (time.time(), job_id)).rowcount == 1

    def append(self, job_id: str, event: Event) -> int | None:
        """Stores an event and returns its sequence number, from 1; a final one also ends the job.

        None, and nothing is stored, if the job has ended: nothing follows a final event.
        """
        with self._transaction() as database:
            if not self._may_follow(database, job_id, event):
                return None
            last = database.execute("SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = ?", (job_id,))
            sequence = last.fetchone()[0] + 1
            row = (job_id, sequence, time.time(), json.dumps(event.to_json()))
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
            return sequence

    def events(self, job_id: str, after: int = 0) -> list[tuple[int, Event]]:
        """The events with a sequence number above `after`, in order."""
        sql = "SELECT sequence, event FROM events WHERE job_id = ? AND sequence > ? ORDER BY sequence"
        return [(row["sequence"], events.from_json(json.loads(row["event"])))
                for row in self._rows(sql, (job_id, after))]  # fmt: skip

    def engines_at_work(self) -> list[str]:
        """The engines that jobs which have not ended are in the hands of."""
        sql = "SELECT DISTINCT engine FROM jobs WHERE state IN ('queued', 'running') ORDER BY engine"
        return [row["engine"] for row in self._rows(sql, ())]

    def unfinished(self, engine: str) -> list[Job]:
        """The jobs of one engine that have not ended, oldest first."""
        sql = "SELECT * FROM jobs WHERE engine = ? AND state IN ('queued', 'running') ORDER BY number"
        return [_job(row) for row in self._rows(sql, (engine,))]

    def hand_over(self, job_id: str, engine: str) -> None:
        """Puts a job into the hands of another engine."""
        with self._transaction() as database:
            database.execute("UPDATE jobs SET engine = ? WHERE id = ?", (engine, job_id))

    def close(self) -> None:
        """Closes the file; the store cannot be used afterwards."""
        with self._lock:
            self._database.close()

    @staticmethod
    def _may_follow(database: sqlite3.Connection, job_id: str, event: Event) -> bool:
        if not event.is_final:
            sql = "SELECT 1 FROM jobs WHERE id = ? AND state IN ('queued', 'running')"
            return database.execute(sql, (job_id,)).fetchone() is not None
        sql = "UPDATE jobs SET state = ?, ended = ? WHERE id = ? AND state IN ('queued', 'running')"
        return database.execute(sql, (event.kind, time.time(), job_id)).rowcount == 1

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def _rows(self, sql: str, values: tuple) -> list[sqlite3.Row]:
        with self._lock:
            return self._database.execute(sql, values).fetchall()


def _job(row: sqlite3.Row) -> Job:
    return Job(
        id=row["id"], owner=row["owner"], request=GenerationRequest.from_stored(json.loads(row["request"])),
        state=row["state"], created=row["created"], started=row["started"], ended=row["ended"],
        folder=Path(row["folder"]),
    )  # fmt: skip
