"""Check store and queue with torn, deleted or read-only files, clock jumps, and a second server on the same folder."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backend.engine import dispatcher
from backend.engine.store import Store
from backend.errors import DataFolderError, StudioError
from backend.schemas.events import Cancelled, Failed, Finished, Step
from backend.settings import PROJECT_FOLDER
from tests.backend.conftest import all_events, request, wait_for, wait_for_calls
from tests.backend.engine.test_store import add
from tests.gates import Gate

PAGE = 4096


@pytest.fixture
def closed(tmp_path) -> Path:
    """The file of a closed store with 300 jobs."""
    store = Store(tmp_path / "jobs.sqlite3")
    for _ in range(300):
        add(store)
    store.close()
    return tmp_path / "jobs.sqlite3"


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


@pytest.mark.parametrize("page", [0, 1, 2, 30])
def test_a_damaged_page_is_one_sentence_at_the_start(closed, page):
    overwrite(closed, page * PAGE + 8, os.urandom(PAGE - 8))
    with pytest.raises(DataFolderError, match="cannot be used as job store .* move it and its -wal and -shm files away"):
        Store(closed)


def test_the_command_says_it_in_one_line(tmp_path, closed):
    overwrite(closed, 2 * PAGE, os.urandom(PAGE))
    command = [sys.executable, "app.py", "serve", "--port", "1", "--data-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert "jobs.sqlite3 cannot be used as job store (it is damaged" in ended.stderr


def test_garbage_after_the_last_page_does_no_harm(closed):
    with closed.open("ab") as file:
        file.write(os.urandom(3 * PAGE + 100))
    store = Store(closed)
    assert len(store.jobs.list_jobs()) == 300
    add(store)
    store.close()
    with closing(Store(closed)) as store:
        assert len(store.jobs.list_jobs()) == 301


def test_a_store_that_lost_its_end_is_one_sentence(closed):
    os.truncate(closed, closed.stat().st_size - 5 * PAGE)
    with pytest.raises(DataFolderError, match="cannot be used as job store"):
        Store(closed)


@pytest.fixture
def torn(tmp_path) -> Path:
    """The files of a store as a power cut leaves them: 40 jobs, all in the write-ahead log."""
    store = Store(tmp_path / "live.sqlite3")
    for _ in range(40):
        add(store)
    for ending in ("", "-wal"):
        shutil.copy(tmp_path / f"live.sqlite3{ending}", tmp_path / f"torn.sqlite3{ending}")
    store.close()
    return tmp_path / "torn.sqlite3"


@pytest.mark.parametrize("share", [0.0, 0.31, 0.62, 0.93, 1.0])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_torn_write_costs_only_what_came_after_it(torn, share, is_cut):
    log = torn.with_name(f"{torn.name}-wal")
    size = log.stat().st_size
    if is_cut:
        os.truncate(log, int(size * share))
    else:
        overwrite(log, int(size * share), os.urandom(size - int(size * share)))
    store = Store(torn)
    numbers = [row["number"] for row in store.tables.rows("SELECT number FROM jobs ORDER BY number")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == 40 if share == 1.0 else len(numbers) < 40
    add(store)
    store.close()


SERVER = """
import sys, time
from pathlib import Path
from backend.engine.engine import Engine
from tests.backend.conftest import FAKE, request
engine = Engine(Path(sys.argv[1]), pipeline=FAKE)
for _ in range(2):
    print(engine.submit(request("a held square")).id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def gate(close_gate) -> Gate:
    """A gate at the second step of "a held square"."""
    return close_gate("a held square")


@pytest.fixture
def other_server(tmp_path, gate) -> Iterator[subprocess.Popen]:
    """A second server on the same data folder, with two jobs that wait at the gate. It prints their ids."""
    command = [sys.executable, "-c", SERVER, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_dead_servers_jobs_come_over_to_one_that_runs(make_engine, other_server, gate, monkeypatch):
    monkeypatch.setattr(dispatcher, "_ADOPT_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(dispatcher, "_LOOK_SECONDS", 0.1)
    engine = make_engine()
    running, waiting = (other_server.stdout.readline().strip() for _ in range(2))
    wait_for(lambda: isinstance(engine.events.last(running), Step))
    wait_for_calls(engine.queue, "_adopt_abandoned_jobs")
    assert engine.queue.waiting_job_ids() == [] and engine.jobs.find(waiting).state == "queued"
    os.kill(other_server.pid, signal.SIGKILL)
    gate.open()
    for job_id in (running, waiting):
        assert isinstance(all_events(engine, job_id)[-1], Finished)
    assert [event.by for event in engine.events.interruptions(running)] == ["server"] and engine.events.interruptions(
        waiting
    ) == []


def test_stop_on_another_servers_job_says_who_can(make_engine, other_server):
    engine = make_engine()
    running, waiting = (other_server.stdout.readline().strip() for _ in range(2))
    for job_id in (running, waiting):
        with pytest.raises(StudioError, match="another server on the same data folder .* use that server's page"):
            engine.queue.cancel(job_id)
    assert engine.jobs.find(waiting).state == "queued"


def test_an_engine_that_looks_for_dead_ones_keeps_its_own_jobs(make_engine, gate, tmp_path, monkeypatch):
    monkeypatch.setattr(dispatcher, "_ADOPT_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(dispatcher, "_LOOK_SECONDS", 0.1)
    engine = make_engine()
    running, waiting = (engine.submit(request("a held square")) for _ in range(2))
    shutil.rmtree(tmp_path / "data" / "engines")
    (tmp_path / "data" / "engines").mkdir()
    wait_for_calls(engine.queue, "_adopt_abandoned_jobs", 3)
    assert engine.queue.waiting_job_ids() == [waiting.id] and engine.events.interruptions(running.id) == []
    engine.queue.cancel(waiting.id)
    assert all_events(engine, waiting.id)[-1] == Cancelled(None)


def test_a_deleted_run_folder_is_made_again(engine, gate, tmp_path):
    engine.submit(request("a held square"))
    waiting = engine.submit(request())
    shutil.rmtree(waiting.folder)
    gate.open()
    assert isinstance(all_events(engine, waiting.id)[-1], Finished)
    shutil.rmtree(tmp_path / "data" / "runs")
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_a_deleted_run_folder_under_a_running_job_ends_in_words(engine, gate):
    job = engine.submit(request("a held square"))
    gate.wait()
    shutil.rmtree(job.folder)
    gate.open()
    final = all_events(engine, job.id)[-1]
    assert isinstance(final, Finished | Failed)
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


@pytest.mark.parametrize("jump", [-3600.0, 20 * 365 * 24 * 3600.0])
def test_a_clock_that_jumps_changes_no_order_and_ends_no_job(engine, gate, monkeypatch, jump):
    real, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    engine.submit(request("a held square"))
    first = engine.submit(request("first"))
    offset[0] = jump
    second = engine.submit(request("second"))
    assert engine.queue.waiting_job_ids() == [first.id, second.id]
    offset[0] = 0.0
    third = engine.submit(request("third"))
    assert engine.queue.waiting_job_ids() == [first.id, second.id, third.id]
    gate.open()
    for job in (first, second, third):
        assert isinstance(all_events(engine, job.id)[-1], Finished)


READ_ONLY = """
import os, sys
from pathlib import Path
from backend.engine.engine import Engine
from tests.backend.conftest import request
folder = Path(sys.argv[1])
first = Engine(folder.parent / "first", start_worker=False)
first.submit(request(), may_download=True)
first.close()
if os.geteuid() == 0:  # root may write everywhere
    os.chown(folder, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
def attempt(what):
    try:
        return print(what() and "no error")
    except Exception as error:
        return print(type(error).__name__, error)
def lock_up(mode):
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, mode | (0o100 if path.is_dir() else 0))
attempt(lambda: Engine(folder / "data", start_worker=False))
os.chmod(folder, 0o700)
engine = Engine(folder / "data", start_worker=False)
lock_up(0o400)
attempt(lambda: engine.submit(request()))
lock_up(0o600)
engine.close()
lock_up(0o400)
attempt(lambda: Engine(folder / "data", start_worker=False))
"""


def test_a_read_only_folder_is_explained_at_the_start_and_later():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "studio")
        folder.mkdir(mode=0o500)
        os.chmod(name, 0o755)
        command = [sys.executable, "-c", READ_ONLY, str(folder)]
        ended = subprocess.run(command, cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=60)
        folder.chmod(0o700)
    lines = ended.stdout.splitlines()
    assert len(lines) == 3, ended.stdout + ended.stderr
    assert lines[0].startswith("DataFolderError") and "must be writable; choose another with --data-dir" in lines[0]
    assert lines[1].startswith("DataFolderError") and "cannot be written" in lines[1]
    assert lines[2].startswith("DataFolderError") and "--data-dir" in lines[2]
    assert issubclass(DataFolderError, StudioError) and "Traceback" not in ended.stderr
