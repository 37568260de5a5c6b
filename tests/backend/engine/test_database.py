"""The tables of every version open, each migration runs once or not at all, and a newer version's file is refused."""

import multiprocessing
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from backend.engine import tables
from backend.engine.database import Database, execute_all
from backend.engine.job import Selection
from backend.engine.keys import FILE, Keys
from backend.engine.store import Store
from backend.errors import DataFolderError
from backend.settings import PROJECT_FOLDER
from tests.backend.engine.test_store import add

WRITTEN = PROJECT_FOLDER / "tests" / "fixtures" / "written_by_4bce9ae7" / "data" / "jobs.sqlite3"
LATER_COLUMNS = {  # columns that some earlier version lacked
    "jobs": [
        *("place", "starred", "deleted", "has_video", "held", "stopped", "cleaned", "project", "tags", "seconds", "told"),
        *("bytes", "summary", "has_sound", "made_seconds"),
    ],
    "timings": ["device"],
    "comparisons": ["columns"],
}


def make_older(path: Path, **columns: Iterable[str]) -> None:
    """Remove the columns from a file's tables, and its version, as in files that earlier versions wrote."""
    with closing(sqlite3.connect(path)) as database:
        for (index,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall():
            database.execute(f"DROP INDEX {index}")
        for table, names in columns.items():
            for name in names:
                database.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
        database.execute("PRAGMA user_version = 0")


def schema(path: Path) -> tuple[int, dict[str, set], set]:
    """Return the version, each table's columns without their order, and the indices."""
    with closing(sqlite3.connect(path)) as database:
        named = database.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        columns = {
            name: {row[1:] for row in database.execute(f"PRAGMA table_info({name})")} for kind, name in named if kind == "table"
        }
        (version,) = database.execute("PRAGMA user_version").fetchone()
        return version, columns, {name for kind, name in named if kind == "index"}


@pytest.fixture
def fresh(tmp_path) -> Path:
    Store(tmp_path / "fresh.sqlite3").close()
    return tmp_path / "fresh.sqlite3"


@pytest.mark.parametrize("count", range(len(LATER_COLUMNS["jobs"]) + 1))
def test_files_of_every_earlier_version_get_the_tables_of_a_new_file(fresh, tmp_path, count):
    older = shutil.copy(fresh, tmp_path / "older.sqlite3")
    lacks = {table: names[: -count or None] for table, names in LATER_COLUMNS.items()}
    make_older(older, **lacks)
    Store(older).close()
    assert schema(older) == schema(fresh) and schema(fresh)[0] == len(tables.MIGRATIONS)


@pytest.mark.parametrize("missing", [[table] for table in ("own_presets", "comparisons", "samples", "timings", "projects")])
def test_a_file_without_a_later_table_gets_it(fresh, missing):
    with closing(sqlite3.connect(fresh)) as database:
        for table in missing:
            database.execute(f"DROP TABLE {table}")
        database.execute("PRAGMA user_version = 0")
    Store(fresh).close()
    assert set(missing) <= schema(fresh)[1].keys()


def test_a_search_finds_jobs_that_an_older_server_added(tmp_path):
    with closing(Store(tmp_path / "jobs.sqlite3")) as store, closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as older:
        job_id = add(store)
        older.execute("UPDATE jobs SET summary = NULL, has_video = NULL, state = 'finished', ended = 1.0")
        event = '{"kind": "finished", "result": {"path": "/x", "num_frames": 8, "fps": 4, "seconds": {"total": 3.5}}}'
        older.execute("INSERT INTO events VALUES (?, 1, 1.0, ?)", (job_id, event))
        older.commit()
        [job] = store.library.videos(Selection(words=("圆",), presets=("wan-tiny",), length="short"))
        assert (job.id, job.has_video, job.made_seconds) == (job_id, True, 3.5)
        assert store.library.prompts("ann", 5) == ["圆"]


def test_a_list_does_not_wait_for_a_writer_that_has_added_a_job(tmp_path, monkeypatch):
    monkeypatch.setattr("backend.engine.database._WAIT_SECONDS", 0.05)
    with closing(Store(tmp_path / "jobs.sqlite3")) as store, closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as older:
        first, second = add(store), add(store)
        older.execute("UPDATE jobs SET summary = NULL WHERE id = ?", (second,))
        older.commit()
        older.execute("BEGIN IMMEDIATE")
        assert [job.id for job in store.library.unended()] == [first]
        older.rollback()
        assert [job.id for job in store.library.unended()] == [first, second]


def test_a_newer_file_is_refused_with_what_to_do_and_stays_as_it_is(fresh):
    with closing(sqlite3.connect(fresh)) as database:
        database.execute("PRAGMA user_version = 7")
    before = fresh.read_bytes()
    with pytest.raises(DataFolderError, match=r"fresh\.sqlite3 has version 7 .* reads versions up to 1; update the studio"):
        Store(fresh)
    assert fresh.read_bytes() == before


def test_newer_keys_are_refused_with_what_to_do(tmp_path):
    keys = Keys(tmp_path)
    _, secret = keys.create("shop")
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("PRAGMA user_version = 7")
    for use in (keys.list_keys, lambda: keys.create("other"), lambda: keys.find_by_secret(secret), lambda: keys.revoke("shop")):
        with pytest.raises(DataFolderError, match="update the studio"):
            use()


def two_tables(database: sqlite3.Connection) -> None:
    execute_all(database, "CREATE TABLE first (n INTEGER); CREATE TABLE second (n INTEGER); INSERT INTO first VALUES (1)")


def add_column(database: sqlite3.Connection) -> None:
    execute_all(database, "ALTER TABLE first ADD COLUMN later INTEGER; UPDATE first SET later = n + 1")


def test_migrations_run_in_order_and_once(tmp_path):
    path = tmp_path / "a.sqlite3"
    Database(path, [two_tables]).close()
    for _ in range(2):
        with closing(Database(path, [two_tables, add_column])) as database:
            assert [tuple(row) for row in database.rows("SELECT n, later FROM first")] == [(1, 2)]
            assert database.rows("PRAGMA user_version")[0][0] == 2


def test_a_failed_migration_leaves_the_previous_version(tmp_path):
    def fail(database: sqlite3.Connection) -> None:
        add_column(database)
        database.execute("INSERT INTO missing VALUES (1)")

    Database(tmp_path / "a.sqlite3", [two_tables]).close()
    before = schema(tmp_path / "a.sqlite3")
    with pytest.raises(DataFolderError, match="no such table: missing"):
        Database(tmp_path / "a.sqlite3", [two_tables, fail])
    assert schema(tmp_path / "a.sqlite3") == before and before[0] == 1
    Database(tmp_path / "a.sqlite3", [two_tables, add_column]).close()


CRASH = """
import os, sys
from pathlib import Path
from backend.engine import tables
from backend.engine.store import Store
fill = tables.fill_columns
tables.fill_columns = lambda database: (fill(database), os._exit(9))
Store(Path(sys.argv[1]))
"""


def test_a_crash_during_a_migration_leaves_the_old_tables_for_the_next_start(tmp_path):
    path = shutil.copy(WRITTEN, tmp_path / "jobs.sqlite3")
    before = schema(path)
    assert before[0] == 0 and subprocess.run([sys.executable, "-c", CRASH, str(path)], cwd=PROJECT_FOLDER).returncode == 9
    assert schema(path) == before
    with closing(Store(path)) as store:
        assert len(store.library.videos(Selection())) == 8


def open_store(path: Path, barrier, runs) -> None:
    def count(database: sqlite3.Connection) -> None:
        with runs.get_lock():
            runs.value += 1
        tables.create_tables(database)

    barrier.wait()
    Database(path, (count,)).close()


@pytest.mark.parametrize("is_new", [False, True])
def test_processes_that_open_a_file_at_the_same_moment_migrate_it_once(tmp_path, is_new):
    context, path = multiprocessing.get_context("spawn"), tmp_path / "jobs.sqlite3"
    if not is_new:
        shutil.copy(WRITTEN, path)
    barrier, runs = context.Barrier(4), context.Value("i", 0)
    processes = [context.Process(target=open_store, args=(path, barrier, runs)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4 and runs.value == 1
