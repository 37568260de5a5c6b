"""The tables of jobs.sqlite3, as migrations. The file contains all data of a data folder except the keys."""

import json
import sqlite3
from contextlib import suppress
from pathlib import Path

from backend.engine.database import Database, create_missing, execute_all
from backend.engine.job import RequestSummary
from backend.engine.stored_requests import read_request
from backend.errors import RequestError

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, engine TEXT NOT NULL,
    request TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, started REAL, ended REAL, folder TEXT NOT NULL,
    place REAL, /* orders an owner's waiting jobs, NULL: the order of their creation */
    starred INTEGER NOT NULL DEFAULT 0,
    deleted REAL, /* when the job was moved to the bin, in seconds since the epoch, NULL: not in the bin */
    has_video INTEGER,
    held INTEGER NOT NULL DEFAULT 0, /* 1: waits until a visitor presses Resume */
    stopped INTEGER NOT NULL DEFAULT 0, /* 1: a visitor pressed Stop while the job ran */
    cleaned INTEGER NOT NULL DEFAULT 0, /* 1: its intermediate files and most of its events were deleted */
    project TEXT NOT NULL DEFAULT '', /* the id of its project, '': no project */
    tags TEXT NOT NULL DEFAULT '[]',
    seconds REAL, /* the length of the video, NULL: no video, or the length is not known */
    told INTEGER NOT NULL DEFAULT 0, /* 1: notify the operator when the job ends */
    bytes INTEGER, /* the size of the folder when it was last measured, NULL: never measured */
    summary TEXT, /* JSON of `RequestSummary` */
    has_sound INTEGER, /* 1: the video has audio, NULL: no video */
    made_seconds REAL); /* how long the generation took, NULL: no video, or the time is not known */
CREATE TABLE IF NOT EXISTS events (
    job_id TEXT NOT NULL REFERENCES jobs (id), sequence INTEGER NOT NULL, time REAL NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (job_id, sequence)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS projects (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL, archived REAL);
CREATE TABLE IF NOT EXISTS current_projects (owner TEXT PRIMARY KEY, project TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS timings (
    number INTEGER PRIMARY KEY, shape TEXT NOT NULL, steps INTEGER NOT NULL, tokens INTEGER NOT NULL, seconds TEXT NOT NULL,
    device TEXT NOT NULL DEFAULT ''); /* the kind of device, '': not known */
CREATE TABLE IF NOT EXISTS own_presets (
    owner TEXT NOT NULL, name TEXT NOT NULL, settings TEXT NOT NULL, changed REAL NOT NULL, PRIMARY KEY (owner, name));
CREATE TABLE IF NOT EXISTS comparisons (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, jobs TEXT NOT NULL, created REAL NOT NULL, columns INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS samples (
    time REAL PRIMARY KEY, waiting INTEGER NOT NULL, running INTEGER NOT NULL, step_seconds REAL,
    device_bytes INTEGER, device_limit INTEGER, disk_bytes INTEGER, disk_limit INTEGER) WITHOUT ROWID;
"""
_INDICES = """
CREATE INDEX IF NOT EXISTS jobs_by_owner ON jobs (owner, number);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
CREATE INDEX IF NOT EXISTS jobs_with_video ON jobs (has_video, number);
CREATE INDEX IF NOT EXISTS jobs_by_project ON jobs (project, number);
CREATE INDEX IF NOT EXISTS jobs_by_end ON jobs (ended);
"""
_FIND_EMPTY = "SELECT 1 FROM jobs WHERE summary IS NULL OR has_video IS NULL OR has_video AND has_sound IS NULL LIMIT 1"
# Old results do not contain `has_sound`. The value is then derived from the request, as in `VideoResult.from_json`.
_FILL = """
UPDATE jobs SET has_video = EXISTS (
    SELECT 1 FROM events WHERE job_id = jobs.id AND json_extract(event, '$.result.path') IS NOT NULL)
    WHERE has_video IS NULL AND ended IS NOT NULL;
UPDATE jobs SET (seconds, has_sound, made_seconds) = (
    SELECT json_extract(event, '$.result.num_frames') * 1.0 / json_extract(event, '$.result.fps'),
        COALESCE(json_extract(event, '$.result.has_sound'),
            json_extract(request, '$.video') IS NOT NULL AND json_extract(request, '$.extend') IS NULL),
        json_extract(event, '$.result.seconds.total') FROM events WHERE job_id = jobs.id ORDER BY sequence DESC LIMIT 1)
    WHERE has_video AND (seconds IS NULL OR has_sound IS NULL);
"""


def create_tables(database: sqlite3.Connection) -> None:
    """Create the tables. In a file of an old studio, whose tables have no version, add the missing tables and columns."""
    create_missing(database, _TABLES)
    execute_all(database, _INDICES)
    fill_columns(database)


def fill_columns(database: sqlite3.Connection) -> None:
    """Fill the columns that servers of earlier versions left empty. They may still add jobs to the same data folder."""
    execute_all(database, _FILL)
    for row in database.execute("SELECT id, folder, request FROM jobs WHERE summary IS NULL").fetchall():
        with suppress(RequestError):  # `read_request` has logged the error; the job is not listed
            summary = RequestSummary.from_request(read_request(row["request"], row["folder"], row["id"]))
            database.execute("UPDATE jobs SET summary = ? WHERE id = ?", (json.dumps(summary.to_json()), row["id"]))


MIGRATIONS = (create_tables,)


class Tables(Database):
    def __init__(self, path: Path):
        """Open or create the file, and migrate it. Raises: DataFolderError."""
        super().__init__(path, MIGRATIONS)
        self._filled_version: int | None = None  # `PRAGMA data_version` when the columns of all jobs were last filled
        self._fill_columns()

    def listed_rows(self, sql: str, values: tuple | dict) -> list[sqlite3.Row]:
        """Fill the columns that a server of an older version left empty, then run a query that reads summaries."""
        with suppress(sqlite3.OperationalError):  # another process locks the file; the next query tries again
            self._fill_columns()
        return self.rows(sql, values)

    def _fill_columns(self) -> None:
        """Fill columns that an older server left empty, unless no other process changed the file since the last call."""
        [(version,)] = self.rows("PRAGMA data_version")
        if version != self._filled_version:
            if self.rows(_FIND_EMPTY):
                with self.transaction() as database:
                    fill_columns(database)
            self._filled_version = version


class TableGroup:
    def __init__(self, tables: Tables):
        self._tables = tables
