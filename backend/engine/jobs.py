"""Store jobs with their requests, states and positions in the queue in SQLite, and read their rows. Needs no worker."""

import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from backend.engine.job import Job, ListedJob
from backend.engine.sizes import folder_size
from backend.engine.stored_paths import make_relative
from backend.engine.stored_requests import read_request
from backend.engine.summary import RequestSummary
from backend.engine.tables import TableGroup
from backend.errors import JobNotFound, RequestError
from backend.schemas.events import Event
from backend.schemas.request import GenerationRequest

# Lists do not read the column `request`, which may be long.
LISTED_COLUMNS = (
    "id, owner, summary, state, created, started, ended, folder, place, starred, deleted, held, stopped, told, project, tags,"
    " has_video, made_seconds"
)


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
        """Store a new job and the engine that owns it."""
        row = (
            job.id,
            job.owner,
            engine,
            json.dumps(make_relative(job.request.to_json(), str(job.folder))),
            job.state,
            job.created,
            str(job.folder),
            job.place or job.created,
            job.project,
            json.dumps(job.tags, ensure_ascii=False),
            folder_size(job.folder).total,
            json.dumps(job.summary.to_json()),
        )
        with self._tables.transaction(is_durable=True) as database:
            database.execute(
                "INSERT INTO jobs"
                " (id, owner, engine, request, state, created, folder, place, project, tags, bytes, summary, has_video)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                row,
            )

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

    def replace_waiting_request(self, job_id: str, request: GenerationRequest) -> bool:
        """Replace the request of a waiting job. Return False if the job no longer waits."""
        with self._tables.transaction(is_durable=True) as database:
            sql = "UPDATE jobs SET request = ?, summary = ? WHERE id = ? AND state = 'queued'"
            values = stored_json(database, job_id, request), json.dumps(RequestSummary.from_request(request).to_json()), job_id
            return database.execute(sql, values).rowcount == 1

    def replace_open_request(self, job_id: str, request: GenerationRequest) -> None:
        """Replace the request of a live video with a request that generates the same video again. Do nothing to other jobs."""
        with self._tables.transaction() as database:
            sql = "UPDATE jobs SET request = ?, summary = ? WHERE id = ? AND json_extract(request, '$.is_open')"
            values = stored_json(database, job_id, request), json.dumps(RequestSummary.from_request(request).to_json()), job_id
            database.execute(sql, values)

    def mark_running(self, job_id: str) -> bool:
        """Mark a waiting job as running. Return False if it no longer waits."""
        sql = "UPDATE jobs SET state = 'running', started = COALESCE(started, ?), held = 0 WHERE id = ? AND state = 'queued'"
        return self._tables.execute(sql, (time.time(), job_id)) == 1

    def request_stop(self, job_id: str) -> None:
        """Store that a running job must end. If its worker dies first, the job is then cancelled instead of requeued."""
        self._tables.execute("UPDATE jobs SET stopped = 1 WHERE id = ? AND state = 'running'", (job_id,))

    def requeue(self, job_id: str, is_held: bool) -> None:
        """Queue a running job again. With `is_held`, the job waits until `clear_hold` is called."""
        sql = "UPDATE jobs SET state = 'queued', held = ? WHERE id = ? AND state = 'running'"
        self._tables.execute(sql, (int(is_held), job_id))

    def clear_hold(self, job_id: str) -> None:
        """Release a held job."""
        self._tables.execute("UPDATE jobs SET held = 0 WHERE id = ?", (job_id,))

    def set_place(self, job_id: str, place: float) -> None:
        """Change a job's place in the queue."""
        self._tables.execute("UPDATE jobs SET place = ? WHERE id = ?", (place, job_id))

    def engines_with_open_jobs(self) -> list[str]:
        """Return the engines that own waiting or running jobs."""
        sql = "SELECT DISTINCT engine FROM jobs WHERE state IN ('queued', 'running') ORDER BY engine"
        return [row["engine"] for row in self._tables.rows(sql)]

    def unfinished_jobs(self, engine: str) -> list[str]:
        """Return the ids of one engine's waiting and running jobs, in the order of their places in the queue."""
        sql = "SELECT id FROM jobs WHERE engine = ? AND state IN ('queued', 'running') ORDER BY COALESCE(place, created), number"
        return [row["id"] for row in self._tables.rows(sql, (engine,))]

    def owning_engine(self, job_id: str) -> str | None:
        """Return the engine that owns the job, None if the job does not exist."""
        return next((row["engine"] for row in self._tables.rows("SELECT engine FROM jobs WHERE id = ?", (job_id,))), None)

    def assign_engine(self, job_id: str, engine: str) -> None:
        """Make another engine the owner of a job."""
        self._tables.execute("UPDATE jobs SET engine = ? WHERE id = ?", (engine, job_id))

    def request_notification(self, job_id: str) -> None:
        """Store that the operator must be notified when the job ends."""
        self._tables.execute("UPDATE jobs SET told = 1 WHERE id = ?", (job_id,))

    def forget(self, job_id: str) -> None:
        """Delete a job and its events permanently."""
        with self._tables.transaction() as database:
            database.execute("DELETE FROM events WHERE job_id = ?", (job_id,))
            database.execute("DELETE FROM jobs WHERE id = ?", (job_id,))


def stored_json(database: sqlite3.Connection, job_id: str, value: GenerationRequest | Event) -> str:
    """Return the JSON of a job's request or event as the table stores it."""
    rows = database.execute("SELECT folder FROM jobs WHERE id = ?", (job_id,)).fetchall()
    return json.dumps(make_relative(value.to_json(), rows[0]["folder"]) if rows else value.to_json())


def _listed_fields(row: sqlite3.Row) -> dict[str, Any]:
    """Return the fields of a `ListedJob` except its summary."""
    return {
        "id": row["id"],
        "owner": row["owner"],
        "state": row["state"],
        "created": row["created"],
        "started": row["started"],
        "ended": row["ended"],
        "folder": Path(row["folder"]),
        "place": row["place"] if row["place"] is not None else row["created"],
        "is_starred": bool(row["starred"]),
        "deleted": row["deleted"],
        "is_held": bool(row["held"]),
        "is_stopped": bool(row["stopped"]),
        "is_operator_notified": bool(row["told"]),
        "project": row["project"],
        "tags": tuple(json.loads(row["tags"])),
        "has_video": bool(row["has_video"]),
        "made_seconds": row["made_seconds"],
    }


def _read_job(row: sqlite3.Row) -> Job:
    request = read_request(row["request"], row["folder"], row["id"])
    # An older server has just added a job without a summary.
    summary = RequestSummary.from_request(request) if row["summary"] is None else _read_summary(row)
    return Job(**_listed_fields(row), summary=summary, request=request)


def _read_jobs(rows: Iterable[sqlite3.Row]) -> list[Job]:
    """Read the rows. Leave out rows whose request this version of the studio refuses."""
    jobs = []
    for row in rows:
        with suppress(RequestError):
            jobs.append(_read_job(row))
    return jobs


def read_listed_jobs(rows: Iterable[sqlite3.Row]) -> list[ListedJob]:
    """Read the jobs from rows that `Tables.listed_rows` returned. Leave out rows without a summary.

    `listed_rows` adds missing summaries, except for jobs whose request this version of the studio refuses.
    """
    return [ListedJob(**_listed_fields(row), summary=_read_summary(row)) for row in rows if row["summary"] is not None]


def _read_summary(row: sqlite3.Row) -> RequestSummary:
    return RequestSummary.from_json(json.loads(row["summary"]))
