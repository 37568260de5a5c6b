"""Store the events of jobs in SQLite. A final event also ends its job."""

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import cast

from backend.engine.jobs import stored_json
from backend.engine.stored_paths import make_absolute
from backend.engine.tables import Tables
from backend.schemas.events import Event, Interrupted, VideoResult, from_json

_EVENTS = "(SELECT job_id, sequence, event, folder FROM events JOIN jobs ON jobs.id = job_id)"


class JobEvents:
    """The numbered events of all jobs. Each method is one transaction."""

    def __init__(self, tables: Tables):
        self._tables = tables

    def append(self, job_id: str, event: Event) -> int | None:
        """Store an event and return its sequence number, from 1. A final event also ends the job.

        Return None and store nothing if the job has already ended.
        """
        with self._tables.transaction(is_durable=event.is_final) as database:
            return self._insert_event(database, job_id, event)

    def append_several(self, changes: Iterable[tuple[str, Event]]) -> dict[str, int]:
        """Store one event per job, for example new places in the queue. Return the sequence numbers by job id."""
        with self._tables.transaction() as database:
            numbers = {job_id: self._insert_event(database, job_id, event) for job_id, event in changes}
        return {job_id: number for job_id, number in numbers.items() if number is not None}

    def _insert_event(self, database: sqlite3.Connection, job_id: str, event: Event) -> int | None:
        if not self._accepts_event(database, job_id, event):
            return None
        last = database.execute("SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = ?", (job_id,))
        sequence = last.fetchone()[0] + 1
        row = (job_id, sequence, time.time(), stored_json(database, job_id, event))
        database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
        return sequence

    @staticmethod
    def _accepts_event(database: sqlite3.Connection, job_id: str, event: Event) -> bool:
        if not event.is_final:
            sql = "SELECT 1 FROM jobs WHERE id = ? AND state IN ('queued', 'running')"
            return database.execute(sql, (job_id,)).fetchone() is not None
        result = getattr(event, "result", None)
        sql = (
            "UPDATE jobs SET state = ?, ended = ?, has_video = ?, seconds = ?, has_sound = ?, made_seconds = ?"
            " WHERE id = ? AND state IN ('queued', 'running')"
        )
        made = (result.num_frames / result.fps, int(result.has_sound), result.seconds.get("total")) if result else (None,) * 3
        return database.execute(sql, (event.kind, time.time(), int(result is not None), *made, job_id)).rowcount == 1

    def list_events(self, job_id: str, after: int = 0) -> list[tuple[int, Event]]:
        """Return the events with a sequence number above `after`, in order."""
        sql = f"SELECT * FROM {_EVENTS} WHERE job_id = ? AND sequence > ? ORDER BY sequence"
        return [(row["sequence"], _read_event(row)) for row in self._tables.rows(sql, (job_id, after))]

    def last(self, job_id: str) -> Event | None:
        """Return the job's newest event, None without events."""
        sql = f"SELECT * FROM {_EVENTS} WHERE job_id = ? ORDER BY sequence DESC LIMIT 1"
        return next(map(_read_event, self._tables.rows(sql, (job_id,))), None)

    def last_progress(self, job_id: str) -> Event | None:
        """Return the job's newest event that contains no video.

        Lists use this event, because an event with a video contains the whole request.
        """
        sql = (
            f"SELECT * FROM {_EVENTS} WHERE job_id = ? AND json_extract(event, '$.result') IS NULL ORDER BY sequence DESC LIMIT 1"
        )
        return next(map(_read_event, self._tables.rows(sql, (job_id,))), None)

    def interruptions(self, job_id: str) -> list[Interrupted]:
        """Return the job's interruptions, oldest first."""
        sql = f"SELECT * FROM {_EVENTS} WHERE job_id = ? AND json_extract(event, '$.kind') = 'interrupted' ORDER BY sequence"
        return [
            cast(Interrupted, _read_event(row)) for row in self._tables.rows(sql, (job_id,))
        ]  # the query selects only interruptions

    def last_preview(self, job_id: str) -> str | None:
        """Return the newest preview in the job's events, as a path in the job's folder. None if it has no preview."""
        sql = (
            "SELECT json_extract(event, '$.preview') AS preview FROM events"
            " WHERE job_id = ? AND preview IS NOT NULL ORDER BY sequence DESC LIMIT 1"
        )
        return next((row["preview"] for row in self._tables.rows(sql, (job_id,))), None)

    def result(self, job_id: str) -> VideoResult | None:
        """Return the job's video, or None."""
        return getattr(self.last(job_id), "result", None)


def _read_event(row: sqlite3.Row) -> Event:
    return from_json(make_absolute(json.loads(row["event"]), row["folder"], row["job_id"]))
