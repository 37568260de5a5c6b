"""Store the events of jobs in SQLite. A final event also ends its job."""

import json
import sqlite3
import time
from collections.abc import Iterable

from backend.engine.jobs import stored_json
from backend.engine.stored_paths import make_absolute
from backend.engine.tables import TableGroup
from backend.schemas.events import Event, Interrupted, VideoResult, from_json


class JobEvents(TableGroup):
    """The numbered events of all jobs. Each method is one transaction."""

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
        accepted = "WHERE id = ? AND state IN ('queued', 'running')"
        if event.is_final:
            result = getattr(event, "result", None)
            made = (result.num_frames / result.fps, int(result.has_sound), result.seconds.get("total")) if result else (None,) * 3
            sql = f"UPDATE jobs SET state = ?, ended = ?, has_video = ?, seconds = ?, has_sound = ?, made_seconds = ? {accepted}"
            if not database.execute(sql, (event.kind, time.time(), int(result is not None), *made, job_id)).rowcount:
                return None
        elif database.execute(f"SELECT 1 FROM jobs {accepted}", (job_id,)).fetchone() is None:
            return None
        last = database.execute("SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = ?", (job_id,))
        sequence = last.fetchone()[0] + 1
        row = (job_id, sequence, time.time(), stored_json(database, job_id, event))
        database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
        return sequence

    def list_events(self, job_id: str, after: int = 0, *, condition: str = "TRUE") -> list[tuple[int, Event]]:
        """Return the events with a sequence number above `after` for which the SQL `condition` is true, in order."""
        return self._read_events(job_id, f"sequence > {after:d} AND {condition} ORDER BY sequence")

    def last(self, job_id: str, *, condition: str = "TRUE") -> Event | None:
        """Return the job's newest event for which the SQL `condition` is true, or None."""
        events = self._read_events(job_id, f"{condition} ORDER BY sequence DESC LIMIT 1")
        return events[0][1] if events else None

    def last_progress(self, job_id: str) -> Event | None:
        """Return the job's newest event that contains no `VideoResult`.

        Lists use this event, because a `VideoResult` contains the whole request.
        """
        return self.last(job_id, condition="json_extract(event, '$.result') IS NULL")

    def interruptions(self, job_id: str) -> list[Interrupted]:
        """Return the job's interruptions, oldest first."""
        events = self.list_events(job_id, condition="json_extract(event, '$.kind') = 'interrupted'")
        return [event for _, event in events if isinstance(event, Interrupted)]

    def _read_events(self, job_id: str, where: str) -> list[tuple[int, Event]]:
        sql = f"SELECT sequence, event, folder FROM events JOIN jobs ON jobs.id = job_id WHERE job_id = ? AND {where}"
        return [
            (row["sequence"], from_json(make_absolute(json.loads(row["event"]), row["folder"], job_id)))
            for row in self._tables.rows(sql, (job_id,))
        ]

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
