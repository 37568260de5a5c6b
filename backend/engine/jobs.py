"""Store jobs, their events and the sizes of their folders in SQLite. Needs no worker, and deletes no files."""

import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from backend.engine.job import EndedJob, Job, ListedJob, RequestSummary
from backend.engine.sizes import folder_size
from backend.engine.stored_requests import make_absolute, make_relative, read_request
from backend.engine.tables import TableGroup
from backend.errors import JobNotFound, RequestError
from backend.schemas.events import Event, Interrupted, VideoResult, from_json
from backend.schemas.request import GenerationRequest

# Lists do not read the column `request`, which may be long.
LISTED_COLUMNS = (
    "id, owner, summary, state, created, started, ended, folder, place, starred, deleted, held, stopped, told, project, tags,"
    " has_video, made_seconds"
)
_CLEAN = """
DELETE FROM events WHERE job_id = :job AND (SELECT ended FROM jobs WHERE id = :job) IS NOT NULL AND sequence NOT IN (
    SELECT MIN(sequence) FROM events WHERE job_id = :job UNION SELECT MAX(sequence) FROM events WHERE job_id = :job
    UNION SELECT sequence FROM events WHERE job_id = :job AND json_extract(event, '$.kind') = 'interrupted'
    UNION SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = :job AND json_extract(event, '$.preview') IS NOT NULL
        AND (SELECT has_video FROM jobs WHERE id = :job) = 0)
"""


class Jobs(TableGroup):
    """The jobs of a data folder, each with its whole request. Each method is one transaction."""

    def update_job_folders(self, runs: Path) -> None:
        """Change the paths of job folders in the database to paths in `runs`, after the data folder was moved or copied."""
        parent = "substr(folder, 1, length(folder) - length(id) - 1)"
        newest = f"SELECT {parent} AS before, id, MAX(number) FROM jobs WHERE deleted IS NULL GROUP BY before HAVING before <> ?"
        for row in self._tables.rows(newest, (str(runs),)):
            if (runs / row["id"]).is_dir():
                with self._tables.transaction(is_durable=True) as database:
                    sql = "UPDATE jobs SET folder = ? || '/' || id WHERE folder = ? || '/' || id"
                    database.execute(sql, (str(runs), row["before"]))

    def add(self, job: Job, engine: str) -> None:
        row = {
            "id": job.id,
            "owner": job.owner,
            "engine": engine,
            "request": json.dumps(make_relative(job.request.to_json(), str(job.folder))),
            "state": job.state,
            "created": job.created,
            "folder": str(job.folder),
            "place": job.place or job.created,
            "project": job.project,
            "tags": json.dumps(job.tags, ensure_ascii=False),
            "bytes": folder_size(job.folder).total,
            "summary": json.dumps(job.summary.to_json()),
            "has_video": 0,
        }
        with self._tables.transaction(is_durable=True) as database:
            sql = f"INSERT INTO jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
            database.execute(sql, tuple(row.values()))

    def find(self, job_id: str) -> Job:
        """Return the job with its whole request. Raises: JobNotFound, RequestError if this version refuses the request."""
        rows = self._tables.rows("SELECT * FROM jobs WHERE id = ?", (job_id,))
        if not rows:
            raise JobNotFound(f"job {job_id[:60]!r}", "does not exist", "check the id")
        return _read_job(rows[0])

    def list_jobs(self, owner: str | None = None, *, most: int | None = None, seed: int | None = None) -> list[Job]:
        """Return all jobs, or the jobs of one owner or with one seed, newest first. `most` limits their number."""
        wanted = {"owner = ?": owner, "json_extract(summary, '$.seed') = ?": seed}
        given = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        sql = f"SELECT * FROM jobs {where} ORDER BY number DESC LIMIT ?"
        return _read_jobs(self._tables.listed_rows(sql, (*given.values(), -1 if most is None else most)))

    def generated_requests(self, most: int) -> list[GenerationRequest]:
        """Return the requests of the last finished videos, newest first, without imported videos."""
        where = "state = 'finished' AND started IS NOT NULL AND deleted IS NULL"
        sql = f"SELECT * FROM jobs WHERE {where} ORDER BY ended DESC LIMIT ?"
        return [job.request for job in _read_jobs(self._tables.rows(sql, (most,)))]

    def replace_request(self, job_id: str, request: GenerationRequest, is_live: bool = False) -> None:
        """Replace the request of a waiting job or, with `is_live`, of a live video. Do nothing to other jobs.

        The new request of a live video generates the same live video again.
        """
        condition = "json_extract(request, '$.is_open')" if is_live else "state = 'queued'"
        with self._tables.transaction(is_durable=not is_live) as database:
            sql = f"UPDATE jobs SET request = ?, summary = ? WHERE id = ? AND {condition}"
            values = _stored_json(database, job_id, request), json.dumps(RequestSummary.from_request(request).to_json()), job_id
            database.execute(sql, values)

    def mark_running(self, job_id: str) -> bool:
        sql = "UPDATE jobs SET state = 'running', started = COALESCE(started, ?), held = 0 WHERE id = ? AND state = 'queued'"
        return self._tables.execute(sql, (time.time(), job_id)) == 1

    def requeue(self, job_id: str, is_held: bool) -> None:
        """Queue a running job again. With `is_held`, the job waits until its column `held` is 0."""
        sql = "UPDATE jobs SET state = 'queued', held = ? WHERE id = ? AND state = 'running'"
        self._tables.execute(sql, (int(is_held), job_id))

    def set_column(self, job_id: str, column: str, value: str | float | None) -> None:
        """Change one column of a job. `column` is trusted SQL."""
        self._tables.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", (value, job_id))

    def request_notification(self, job_id: str) -> None:
        self.set_column(job_id, "told", 1)

    def engines_with_open_jobs(self) -> list[str]:
        sql = "SELECT DISTINCT engine FROM jobs WHERE state IN ('queued', 'running') ORDER BY engine"
        return [row["engine"] for row in self._tables.rows(sql)]

    def unfinished_jobs(self, engine: str) -> list[str]:
        """Return the ids of one engine's waiting and running jobs, in the order of their places in the queue."""
        sql = "SELECT id FROM jobs WHERE engine = ? AND state IN ('queued', 'running') ORDER BY COALESCE(place, created), number"
        return [row["id"] for row in self._tables.rows(sql, (engine,))]

    def forget(self, job_id: str) -> None:
        with self._tables.transaction() as database:
            database.execute("DELETE FROM events WHERE job_id = ?", (job_id,))
            database.execute("DELETE FROM jobs WHERE id = ?", (job_id,))


class JobEvents(TableGroup):
    """The numbered events of all jobs. Each method is one transaction. A final event also ends its job."""

    def append(self, job_id: str, event: Event) -> int | None:
        """Store an event and return its number, from 1. If the job has already ended, store nothing and return None."""
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
        row = (job_id, sequence, time.time(), _stored_json(database, job_id, event))
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
        """Return the newest event without a `VideoResult`, which contains the whole request and would slow down lists."""
        return self.last(job_id, condition="json_extract(event, '$.result') IS NULL")

    def interruptions(self, job_id: str) -> list[Interrupted]:
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
        return getattr(self.last(job_id), "result", None)


class JobFiles(TableGroup):
    """The folders of jobs and their sizes, for `backend.engine.cleaning`. Each method is one transaction."""

    def ended_jobs(self) -> list[EndedJob]:
        sql = "SELECT id, folder, ended, deleted, has_video, starred, cleaned FROM jobs WHERE ended IS NOT NULL ORDER BY number"
        return [
            EndedJob(
                id=row["id"],
                folder=Path(row["folder"]),
                ended=row["ended"],
                deleted=row["deleted"],
                has_video=bool(row["has_video"]),
                is_starred=bool(row["starred"]),
                is_cleaned=bool(row["cleaned"]),
            )
            for row in self._tables.rows(sql)
        ]

    def job_ids(self, *, is_deleted: bool = True) -> set[str]:
        """Return the ids of all jobs. If `is_deleted` is False, leave out jobs in the bin."""
        where = "" if is_deleted else " WHERE deleted IS NULL"
        return {row["id"] for row in self._tables.rows(f"SELECT id FROM jobs{where}")}

    def mark_cleaned(self, job_id: str) -> None:
        """Delete most events: not the first, the last, the interruptions and, without a video, the last with a preview."""
        with self._tables.transaction() as database:
            database.execute(_CLEAN, {"job": job_id})
            database.execute("UPDATE jobs SET cleaned = 1 WHERE id = ?", (job_id,))

    def measure_folder(self, job_id: str | None = None) -> None:
        """Store the size of the job's folder, or of the folders of all ended jobs that an older version has not measured."""
        where, values = ("bytes IS NULL AND ended IS NOT NULL", ()) if job_id is None else ("id = ?", (job_id,))
        for row in self._tables.rows(f"SELECT id, folder FROM jobs WHERE {where}", values):
            self._tables.execute("UPDATE jobs SET bytes = ? WHERE id = ?", (folder_size(Path(row["folder"])).total, row["id"]))

    def stored_bytes(self, owner: str | None, *, is_deleted: bool = False) -> int:
        """Return the last measured bytes of all jobs, or of one owner's jobs. With `is_deleted`, count only jobs in the bin."""
        where = " AND deleted IS NOT NULL" if is_deleted else ""
        sql = f"SELECT COALESCE(SUM(bytes), 0) FROM jobs WHERE (? IS NULL OR owner = ?){where}"
        return self._tables.rows(sql, (owner, owner))[0][0]

    def oldest_deleted(self, owner: str | None) -> str | None:
        """Return the id of the job of the owner (None: of any owner) that is longest in the bin. None if no such job exists."""
        where = "deleted IS NOT NULL AND (? IS NULL OR owner = ?)"
        rows = self._tables.rows(f"SELECT id FROM jobs WHERE {where} ORDER BY deleted LIMIT 1", (owner, owner))
        return rows[0]["id"] if rows else None


def _stored_json(database: sqlite3.Connection, job_id: str, value: GenerationRequest | Event) -> str:
    rows = database.execute("SELECT folder FROM jobs WHERE id = ?", (job_id,)).fetchall()
    return json.dumps(make_relative(value.to_json(), rows[0]["folder"]) if rows else value.to_json())


def _listed_fields(row: sqlite3.Row) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("id", "owner", "state", "created", "started", "ended", "deleted", "project")},
        "folder": Path(row["folder"]),
        "place": row["place"] if row["place"] is not None else row["created"],
        "is_starred": bool(row["starred"]),
        "is_held": bool(row["held"]),
        "is_stopped": bool(row["stopped"]),
        "is_operator_notified": bool(row["told"]),
        "tags": tuple(json.loads(row["tags"])),
        "has_video": bool(row["has_video"]),
        "made_seconds": row["made_seconds"],
    }


def _read_job(row: sqlite3.Row) -> Job:
    request = read_request(row["request"], row["folder"], row["id"])
    if row["summary"] is None:  # an older server has just added the job
        summary = RequestSummary.from_request(request)
    else:
        summary = RequestSummary.from_json(json.loads(row["summary"]))
    return Job(**_listed_fields(row), summary=summary, request=request)


def _read_jobs(rows: Iterable[sqlite3.Row]) -> list[Job]:
    """Read the rows. Leave out rows whose request this version of the studio refuses."""
    jobs = []
    for row in rows:
        with suppress(RequestError):
            jobs.append(_read_job(row))
    return jobs


def read_listed_jobs(rows: Iterable[sqlite3.Row]) -> list[ListedJob]:
    """Read the jobs from rows of `Tables.listed_rows`. Leave out rows without a summary, whose request this version refuses."""
    return [
        ListedJob(**_listed_fields(row), summary=RequestSummary.from_json(json.loads(row["summary"])))
        for row in rows
        if row["summary"] is not None
    ]
