"""Store jobs and their events in SQLite. Depends on no queue and no worker. Safe to use from several threads and processes."""

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from backend.engine.database import Database
from backend.engine.estimate import Run
from backend.engine.history import Samples
from backend.engine.job import EndedJob, Job, ListedJob, Selection
from backend.engine.projects import Projects
from backend.engine.selecting import order_clause, where_clause
from backend.engine.sizes import folder_size
from backend.engine.stored_paths import make_absolute, make_relative
from backend.engine.stored_requests import read_request
from backend.engine.summary import RequestSummary
from backend.engine.tables import FIND_EMPTY, MIGRATIONS, fill_columns
from backend.engine.user_presets import UserPresets
from backend.errors import JobNotFound, RequestError
from backend.schemas import events
from backend.schemas.events import Event, Failed, Interrupted, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape

_CLEAN = """
DELETE FROM events WHERE job_id = :job AND (SELECT ended FROM jobs WHERE id = :job) IS NOT NULL AND sequence NOT IN (
    SELECT MIN(sequence) FROM events WHERE job_id = :job UNION SELECT MAX(sequence) FROM events WHERE job_id = :job
    UNION SELECT sequence FROM events WHERE job_id = :job AND json_extract(event, '$.kind') = 'interrupted'
    UNION SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = :job AND json_extract(event, '$.preview') IS NOT NULL
        AND (SELECT has_video FROM jobs WHERE id = :job) = 0)
"""
# Lists do not read the column `request`, which may be long.
_LISTED = (
    "id, owner, summary, state, created, started, ended, folder, place, starred, deleted, held, stopped, told, project, tags,"
    " has_video, made_seconds"
)
_EVENTS = "(SELECT job_id, sequence, event, folder FROM events JOIN jobs ON jobs.id = job_id)"
MOST_TIMINGS = 500  # older timings are deleted


class Store:
    """The tables of jobs.sqlite3. Each method is one transaction."""

    def __init__(self, path: Path):
        """Open or create the file. Raises: DataFolderError."""
        self._database = Database(path, MIGRATIONS)
        self._filled_version: int | None = None  # `PRAGMA data_version` when the columns of all jobs were last filled
        self.user_presets, self.projects = UserPresets(self._database), Projects(self._database)
        self.samples = Samples(self._database)
        self._fill_columns()

    def close(self) -> None:
        """Close the file. The tables cannot be used afterwards."""
        self._database.close()

    def update_job_folders(self, runs: Path) -> None:
        """Replace the stored folders of jobs by folders in `runs`, after the data folder was moved or copied."""
        parent = "substr(folder, 1, length(folder) - length(id) - 1)"
        newest = f"SELECT {parent} AS before, id, MAX(number) FROM jobs WHERE deleted IS NULL GROUP BY before HAVING before <> ?"
        for row in self._database.rows(newest, (str(runs),)):
            if (runs / row["id"]).is_dir():
                with self._database.transaction(is_durable=True) as database:
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
        with self._database.transaction(is_durable=True) as database:
            database.execute(
                "INSERT INTO jobs"
                " (id, owner, engine, request, state, created, folder, place, project, tags, bytes, summary, has_video)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                row,
            )

    def job(self, job_id: str) -> Job:
        """Return the job with its whole request. Raises: JobNotFound, RequestError if this version refuses the request."""
        rows = self._database.rows("SELECT * FROM jobs WHERE id = ?", (job_id,))
        if not rows:
            raise JobNotFound(f"job {job_id[:60]!r}", "does not exist", "check the id")
        return _job(rows[0])

    def jobs(self, owner: str | None = None, *, most: int | None = None, seed: int | None = None) -> list[Job]:
        """Return all jobs, or the jobs of one owner or with one seed, newest first. `most` limits their number."""
        wanted = {"owner = ?": owner, "json_extract(summary, '$.seed') = ?": seed}
        given = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        sql = f"SELECT * FROM jobs {where} ORDER BY number DESC LIMIT ?"
        return _jobs(self._listed_rows(sql, (*given.values(), -1 if most is None else most)))

    def page(self, owner: str | None, *, after: str | None, most: int, oldest_first: bool) -> list[ListedJob]:
        """Return up to `most` jobs of one owner, or of all owners for None, newest first unless `oldest_first`.

        Jobs in the bin are left out. The list starts after the job `after`, which may be in the bin. Return nothing if that job
        does not exist.
        """
        order, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
        sql = (
            f"SELECT {_LISTED} FROM jobs WHERE deleted IS NULL AND (:owner IS NULL OR owner = :owner)"
            f" AND (:after IS NULL OR number {beyond} (SELECT number FROM jobs WHERE id = :after))"
            f" ORDER BY number {order} LIMIT :most"
        )
        return _listed_jobs(self._listed_rows(sql, {"owner": owner, "after": after, "most": most}))

    def unended(self, owner: str | None = None) -> list[ListedJob]:
        """Return the waiting and running jobs of one owner, or of all owners for None, oldest first."""
        where = "state IN ('queued', 'running') AND (? IS NULL OR owner = ?)"
        sql = f"SELECT {_LISTED} FROM jobs WHERE {where} ORDER BY number"
        return _listed_jobs(self._listed_rows(sql, (owner, owner)))

    def ended(self, owner: str | None = None, most: int = 6) -> list[ListedJob]:
        """Return the `most` jobs that ended last and are not in the bin. The job that ended last comes first."""
        sql = (
            f"SELECT {_LISTED} FROM jobs WHERE ended IS NOT NULL AND deleted IS NULL AND (? IS NULL OR owner = ?)"
            " ORDER BY ended DESC LIMIT ?"
        )
        return _listed_jobs(self._listed_rows(sql, (owner, owner, most)))

    def prompts(self, owner: str, most: int) -> list[str]:
        """Return the prompts of the owner's last jobs, newest first."""
        where = "owner = ? AND summary IS NOT NULL"
        sql = f"SELECT json_extract(summary, '$.prompt') FROM jobs WHERE {where} ORDER BY number DESC LIMIT ?"
        return [row[0] for row in self._listed_rows(sql, (owner, most))]

    def figures(self, selection: Selection) -> list[tuple[str, str]]:
        """Return (name, image path) of each character with an image, in the order of the selected storyboards."""
        where, values = where_clause(selection)
        columns = "id, folder, json_extract(request, '$.figures') AS figures, json_extract(request, '$.figure_images') AS images"
        sql = f"SELECT {columns} FROM jobs WHERE {where} ORDER BY {order_clause(selection)} LIMIT ?"
        found: list[tuple[str, str]] = []
        for row in self._listed_rows(sql, (*values, selection.most)):
            given = {"figure_images": json.loads(row["images"] or "[]")}
            images = make_absolute(given, row["folder"], row["id"])["figure_images"]
            figures = json.loads(row["figures"] or "[]")
            found += [(figure["name"], images[figure["image"]]) for figure in figures if figure.get("image") is not None]
        return found

    def generated_requests(self, most: int) -> list[GenerationRequest]:
        """Return the requests of the last finished videos, newest first, without imported videos."""
        where = "state = 'finished' AND started IS NOT NULL AND deleted IS NULL"
        sql = f"SELECT * FROM jobs WHERE {where} ORDER BY ended DESC LIMIT ?"
        return [job.request for job in _jobs(self._database.rows(sql, (most,)))]

    def videos(self, selection: Selection) -> list[ListedJob]:
        """Return the selected jobs with a video, in the order of the selection."""
        where, values = where_clause(selection)
        sql = f"SELECT {_LISTED} FROM jobs WHERE {where} ORDER BY {order_clause(selection)} LIMIT ?"
        return _listed_jobs(self._listed_rows(sql, (*values, selection.most)))

    def count_videos(self, selection: Selection) -> int:
        """Return the number of all selected jobs with a video. The selection's limit `most` is ignored."""
        where, values = where_clause(selection)
        return self._listed_rows(f"SELECT COUNT(*) FROM jobs WHERE {where}", values)[0][0]

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by state."""
        return {row["state"]: row["n"] for row in self._database.rows("SELECT state, COUNT(*) AS n FROM jobs GROUP BY state")}

    def star(self, job_id: str, is_starred: bool) -> None:
        """Add or remove a job's star."""
        self._database.execute("UPDATE jobs SET starred = ? WHERE id = ?", (int(is_starred), job_id))

    def set_deleted(self, job_id: str, is_deleted: bool) -> None:
        """Move an ended job to the bin, or restore it. Deletes no files."""
        sql = "UPDATE jobs SET deleted = ? WHERE id = ? AND state NOT IN ('queued', 'running')"
        self._database.execute(sql, (time.time() if is_deleted else None, job_id))

    def ended_jobs(self) -> list[EndedJob]:
        """Return all ended jobs, oldest first."""
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
            for row in self._database.rows(sql)
        ]

    def job_ids(self, *, is_deleted: bool = True) -> set[str]:
        """Return the ids of all jobs. If `is_deleted` is False, leave out jobs in the bin."""
        where = "" if is_deleted else " WHERE deleted IS NULL"
        return {row["id"] for row in self._database.rows(f"SELECT id FROM jobs{where}")}

    def last_preview(self, job_id: str) -> str | None:
        """Return the newest preview in the job's events, as a path in the job's folder. None if it has no preview."""
        sql = (
            "SELECT json_extract(event, '$.preview') AS preview FROM events"
            " WHERE job_id = ? AND preview IS NOT NULL ORDER BY sequence DESC LIMIT 1"
        )
        return next((row["preview"] for row in self._database.rows(sql, (job_id,))), None)

    def mark_cleaned(self, job_id: str) -> None:
        """Mark an ended job as cleaned and delete most of its events.

        Keeps the first and the last event, the interruptions, and, without a video, the event with the last preview.
        """
        with self._database.transaction() as database:
            database.execute(_CLEAN, {"job": job_id})
            database.execute("UPDATE jobs SET cleaned = 1 WHERE id = ?", (job_id,))

    def forget(self, job_id: str) -> None:
        """Delete a job and its events permanently."""
        with self._database.transaction() as database:
            database.execute("DELETE FROM events WHERE job_id = ?", (job_id,))
            database.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def measure_folder(self, job_id: str) -> None:
        """Measure the job's folder and store its size in bytes."""
        for row in self._database.rows("SELECT folder FROM jobs WHERE id = ?", (job_id,)):
            self._database.execute("UPDATE jobs SET bytes = ? WHERE id = ?", (folder_size(Path(row["folder"])).total, job_id))

    def unmeasured_jobs(self) -> list[str]:
        """Return the ids of ended jobs whose folders were never measured, because an older version added them."""
        return [row["id"] for row in self._database.rows("SELECT id FROM jobs WHERE bytes IS NULL AND ended IS NOT NULL")]

    def stored_bytes(self, owner: str | None, *, is_deleted: bool = False) -> int:
        """Return the last measured bytes of all jobs, or of one owner's jobs. With `is_deleted`, count only jobs in the bin."""
        where = " AND deleted IS NOT NULL" if is_deleted else ""
        sql = f"SELECT COALESCE(SUM(bytes), 0) FROM jobs WHERE (? IS NULL OR owner = ?){where}"
        return self._database.rows(sql, (owner, owner))[0][0]

    def oldest_deleted(self, owner: str | None) -> str | None:
        """Return the id of the job that has been in the bin for the longest time, of one owner or of all owners for None.

        Return None if the bin is empty.
        """
        where = "deleted IS NOT NULL AND (? IS NULL OR owner = ?)"
        rows = self._database.rows(f"SELECT id FROM jobs WHERE {where} ORDER BY deleted LIMIT 1", (owner, owner))
        return rows[0]["id"] if rows else None

    def set_place(self, job_id: str, place: float) -> None:
        """Change a job's place in the queue."""
        self._database.execute("UPDATE jobs SET place = ? WHERE id = ?", (place, job_id))

    def replace_waiting_request(self, job_id: str, request: GenerationRequest) -> bool:
        """Replace the request of a waiting job. Return False if the job no longer waits."""
        with self._database.transaction(is_durable=True) as database:
            sql = "UPDATE jobs SET request = ?, summary = ? WHERE id = ? AND state = 'queued'"
            values = _stored_json(database, job_id, request), json.dumps(RequestSummary.from_request(request).to_json()), job_id
            return database.execute(sql, values).rowcount == 1

    def replace_open_request(self, job_id: str, request: GenerationRequest) -> None:
        """Replace the request of a live video with the request that regenerates the video. Do nothing to other jobs."""
        with self._database.transaction() as database:
            sql = "UPDATE jobs SET request = ?, summary = ? WHERE id = ? AND json_extract(request, '$.is_open')"
            values = _stored_json(database, job_id, request), json.dumps(RequestSummary.from_request(request).to_json()), job_id
            database.execute(sql, values)

    def last_event(self, job_id: str) -> Event | None:
        """Return the job's newest event, None without events."""
        sql = f"SELECT * FROM {_EVENTS} WHERE job_id = ? ORDER BY sequence DESC LIMIT 1"
        return next(map(_event, self._database.rows(sql, (job_id,))), None)

    def last_progress(self, job_id: str) -> Event | None:
        """Return the job's newest event that contains no video."""
        sql = (
            f"SELECT * FROM {_EVENTS} WHERE job_id = ? AND json_extract(event, '$.result') IS NULL ORDER BY sequence DESC LIMIT 1"
        )
        return next(map(_event, self._database.rows(sql, (job_id,))), None)

    def result(self, job_id: str) -> VideoResult | None:
        """Return the job's video, or None."""
        return getattr(self.last_event(job_id), "result", None)

    def with_sound(self, job_ids: Sequence[str]) -> frozenset[str]:
        """Return the ids in `job_ids` whose video has audio."""
        sql = "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND has_sound"
        rows = self._listed_rows(sql, (json.dumps(list(job_ids)),))
        return frozenset(row["id"] for row in rows)

    def failures(self, most: int) -> list[tuple[ListedJob, Failed]]:
        """Return the jobs that failed last, with their reasons, newest first."""
        sql = f"SELECT {_LISTED} FROM jobs WHERE state = 'failed' ORDER BY ended DESC LIMIT ?"
        ends = [(job, self.last_event(job.id)) for job in _listed_jobs(self._listed_rows(sql, (most,)))]
        return [(job, event) for job, event in ends if isinstance(event, Failed)]

    def add_run(self, run: Run) -> None:
        """Store the timings of a finished video, for estimates."""
        row = (json.dumps(asdict(run.shape)), run.steps, run.num_tokens, json.dumps(run.seconds), run.device)
        with self._database.transaction() as database:
            database.execute("INSERT INTO timings (shape, steps, tokens, seconds, device) VALUES (?, ?, ?, ?, ?)", row)
            database.execute("DELETE FROM timings WHERE number <= (SELECT MAX(number) FROM timings) - ?", (MOST_TIMINGS,))

    def load_runs(self) -> list[Run]:
        """Return the stored timings of finished videos, newest first."""
        return [
            Run(
                shape=Shape(**json.loads(row["shape"])),
                steps=row["steps"],
                num_tokens=row["tokens"],
                seconds=json.loads(row["seconds"]),
                device=row["device"],
            )
            for row in self._database.rows("SELECT * FROM timings ORDER BY number DESC")
        ]

    def mark_running(self, job_id: str) -> bool:
        """Mark a waiting job as running. Return False if it no longer waits."""
        sql = "UPDATE jobs SET state = 'running', started = COALESCE(started, ?), held = 0 WHERE id = ? AND state = 'queued'"
        return self._database.execute(sql, (time.time(), job_id)) == 1

    def request_stop(self, job_id: str) -> None:
        """Store that a running job must end, in case its worker dies first."""
        self._database.execute("UPDATE jobs SET stopped = 1 WHERE id = ? AND state = 'running'", (job_id,))

    def request_notification(self, job_id: str) -> None:
        """Store that the operator must be notified when the job ends."""
        self._database.execute("UPDATE jobs SET told = 1 WHERE id = ?", (job_id,))

    def requeue(self, job_id: str, is_held: bool) -> None:
        """Queue a running job again. With `is_held`, the job waits until `clear_hold` is called."""
        sql = "UPDATE jobs SET state = 'queued', held = ? WHERE id = ? AND state = 'running'"
        self._database.execute(sql, (int(is_held), job_id))

    def clear_hold(self, job_id: str) -> None:
        """Release a held job."""
        self._database.execute("UPDATE jobs SET held = 0 WHERE id = ?", (job_id,))

    def interruptions(self, job_id: str) -> list[Interrupted]:
        """Return the job's interruptions, oldest first."""
        sql = f"SELECT * FROM {_EVENTS} WHERE job_id = ? AND json_extract(event, '$.kind') = 'interrupted' ORDER BY sequence"
        return [
            cast(Interrupted, _event(row)) for row in self._database.rows(sql, (job_id,))
        ]  # the query selects only interruptions

    def append_event(self, job_id: str, event: Event) -> int | None:
        """Store an event and return its sequence number, from 1. A final event also ends the job.

        Return None and store nothing if the job has already ended.
        """
        with self._database.transaction(is_durable=event.is_final) as database:
            return self._insert_event(database, job_id, event)

    def append_events(self, changes: Iterable[tuple[str, Event]]) -> dict[str, int]:
        """Store one event per job, for example new places in the queue. Return the sequence numbers by job id."""
        with self._database.transaction() as database:
            numbers = {job_id: self._insert_event(database, job_id, event) for job_id, event in changes}
        return {job_id: number for job_id, number in numbers.items() if number is not None}

    def _insert_event(self, database: sqlite3.Connection, job_id: str, event: Event) -> int | None:
        if not self._accepts_event(database, job_id, event):
            return None
        last = database.execute("SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = ?", (job_id,))
        sequence = last.fetchone()[0] + 1
        row = (job_id, sequence, time.time(), _stored_json(database, job_id, event))
        database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
        return sequence

    def events(self, job_id: str, after: int = 0) -> list[tuple[int, Event]]:
        """Return the events with a sequence number above `after`, in order."""
        sql = f"SELECT * FROM {_EVENTS} WHERE job_id = ? AND sequence > ? ORDER BY sequence"
        return [(row["sequence"], _event(row)) for row in self._database.rows(sql, (job_id, after))]

    def engines_with_open_jobs(self) -> list[str]:
        """Return the engines that own waiting or running jobs."""
        sql = "SELECT DISTINCT engine FROM jobs WHERE state IN ('queued', 'running') ORDER BY engine"
        return [row["engine"] for row in self._database.rows(sql)]

    def unfinished_jobs(self, engine: str) -> list[str]:
        """Return the ids of one engine's waiting and running jobs, in the order of their places in the queue."""
        sql = "SELECT id FROM jobs WHERE engine = ? AND state IN ('queued', 'running') ORDER BY COALESCE(place, created), number"
        return [row["id"] for row in self._database.rows(sql, (engine,))]

    def owning_engine(self, job_id: str) -> str | None:
        """Return the engine that owns the job, None if the job does not exist."""
        return next((row["engine"] for row in self._database.rows("SELECT engine FROM jobs WHERE id = ?", (job_id,))), None)

    def assign_engine(self, job_id: str, engine: str) -> None:
        """Make another engine the owner of a job."""
        self._database.execute("UPDATE jobs SET engine = ? WHERE id = ?", (engine, job_id))

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

    def _listed_rows(self, sql: str, values: tuple | dict) -> list[sqlite3.Row]:
        """Return the rows of a query that reads summaries, also of jobs that an older server has just added."""
        with suppress(sqlite3.OperationalError):  # another process locks the file; the next query tries again
            self._fill_columns()
        return self._database.rows(sql, values)

    def _fill_columns(self) -> None:
        """Fill columns that an older server left empty. Do nothing if no other process changed the file since the last call."""
        [(version,)] = self._database.rows("PRAGMA data_version")
        if version != self._filled_version:
            if self._database.rows(FIND_EMPTY):
                with self._database.transaction() as database:
                    fill_columns(database)
            self._filled_version = version


def _stored_json(database: sqlite3.Connection, job_id: str, value: GenerationRequest | Event) -> str:
    """Return the JSON of a job's request or event as the table stores it."""
    rows = database.execute("SELECT folder FROM jobs WHERE id = ?", (job_id,)).fetchall()
    return json.dumps(make_relative(value.to_json(), rows[0]["folder"]) if rows else value.to_json())


def _event(row: sqlite3.Row) -> Event:
    return events.from_json(make_absolute(json.loads(row["event"]), row["folder"], row["job_id"]))


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
        "is_told": bool(row["told"]),
        "project": row["project"],
        "tags": tuple(json.loads(row["tags"])),
        "has_video": bool(row["has_video"]),
        "made_seconds": row["made_seconds"],
    }


def _job(row: sqlite3.Row) -> Job:
    request = read_request(row["request"], row["folder"], row["id"])
    # An older server has just added a job without a summary.
    summary = RequestSummary.from_request(request) if row["summary"] is None else _summary(row)
    return Job(**_listed_fields(row), summary=summary, request=request)


def _jobs(rows: Iterable[sqlite3.Row]) -> list[Job]:
    """Read the rows. Leave out rows whose request this version of the studio refuses."""
    jobs = []
    for row in rows:
        with suppress(RequestError):
            jobs.append(_job(row))
    return jobs


def _listed_jobs(rows: Iterable[sqlite3.Row]) -> list[ListedJob]:
    """Read the rows. Leave out rows without a summary, because this version of the studio refuses their requests."""
    return [ListedJob(**_listed_fields(row), summary=_summary(row)) for row in rows if row["summary"] is not None]


def _summary(row: sqlite3.Row) -> RequestSummary:
    return RequestSummary.from_json(json.loads(row["summary"]))
