"""Workers of a dead server are killed, stopped workers too. Other processes are not touched."""

import os
import signal
import subprocess
import sys

import pytest

from backend.settings import DATA_VARIABLE
from backend.workers.process import SERVER_VARIABLE, kill_stale_workers

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def worker(tmp_path):
    """Start a process that looks like a worker of the server with this id, on a data folder."""
    started = []

    def start(server: int, folder: str = "data") -> subprocess.Popen:
        environment = {**os.environ, DATA_VARIABLE: str(tmp_path / folder), SERVER_VARIABLE: str(server)}
        started.append(subprocess.Popen(SLEEPER, env=environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_only_workers_without_their_server_on_this_folder_are_ended(worker, tmp_path):
    dead_server = 2**22 + 1  # larger than any process id
    orphan, ours, elsewhere = worker(dead_server), worker(os.getpid()), worker(dead_server, "other")
    orphan.send_signal(signal.SIGSTOP)
    assert kill_stale_workers(tmp_path / "data") == [orphan.pid]
    assert orphan.wait(60) == -signal.SIGKILL
    assert ours.poll() is None and elsewhere.poll() is None
    assert kill_stale_workers(tmp_path / "data") == []
