"""The worker may die in any way and at any moment; its job fails with a reason, and the next one is made."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.contract.events import Failed, Finished, Step
from backend.settings import PROJECT_FOLDER, from_environment
from backend.workers.process import WorkerPlan
from backend.workers.supervisor import Supervisor
from tests.backend.conftest import all_events, request, wait_for


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet waited for counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def first_step(engine, job_id: str) -> None:
    next(event for _, event in engine.events(job_id) if isinstance(event, Step))


def test_a_killed_worker_fails_its_job_and_the_next_one_is_made(engine):
    job, following = engine.submit(request("a slow square")), engine.submit(request())
    first_step(engine, job.id)
    pid = engine.workers()[0].pid
    os.kill(pid, signal.SIGKILL)
    assert all_events(engine, job.id)[-1] == Failed(
        "The worker process was killed by signal 9 (SIGKILL)",
        "The machine may be out of memory: choose a smaller size or fewer frames, and try again",
    )
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert engine.workers()[0].pid != pid and not is_alive(pid)


def test_a_worker_that_ends_itself_points_to_its_log(engine, tmp_path):
    final = all_events(engine, engine.submit(request("die now")).id)[-1]
    assert final.cause == "The worker process ended with exit code 9"
    assert final.fix.startswith(f"Try again; if it happens again, the reason stands at the end of {tmp_path}/data/logs/")


def test_a_new_worker_stands_ready_after_a_crash(engine):
    wait_for(lambda: engine.worker_status().state == "ready")
    pid = engine.workers()[0].pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine.workers()[0].pid not in (pid, None) and engine.worker_status().state == "ready")


def test_a_worker_that_always_dies_is_not_started_for_ever(make_engine, tmp_path):
    engine, logs = make_engine(model="deadly"), tmp_path / "data" / "logs"

    def stays_down_after(starts: int) -> bool:
        wait_for(lambda: engine.workers()[0].pid is None and len(list(logs.iterdir())) == starts)
        time.sleep(0.5)
        return engine.workers()[0].pid is None and len(list(logs.iterdir())) == starts

    assert stays_down_after(3)
    assert engine.worker_status().detail.startswith("The worker ended with exit code 7; its log is")
    for starts in (6, 9):
        assert all_events(engine, engine.submit(request()).id)[-1].cause == "The worker process ended with exit code 7"
        assert stays_down_after(starts)


def test_a_worker_that_dies_idle_again_and_again_stays_down(engine):
    for _ in range(3):
        wait_for(lambda: engine.worker_status().state == "ready")
        os.kill(engine.workers()[0].pid, signal.SIGKILL)
        wait_for(lambda: engine.worker_status().state != "ready")
    time.sleep(0.5)
    assert engine.workers()[0].pid is None
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_only_the_newest_logs_are_kept(make_engine, tmp_path):
    engine, logs = make_engine(model="deadly", start_worker=False), tmp_path / "data" / "logs"
    for _ in range(5):
        all_events(engine, engine.submit(request()).id)
    assert len(list(logs.iterdir())) <= 10


@pytest.mark.alone
def test_closing_ends_the_worker_in_the_middle_of_a_job(make_engine):
    engine = make_engine()
    job = engine.submit(request("a slow square"))
    first_step(engine, job.id)
    pid, began = engine.workers()[0].pid, time.monotonic()
    engine.close()
    assert not is_alive(pid) and time.monotonic() - began < 2


class Babbler(WorkerPlan):
    """Starts a program that does not speak the protocol."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; print('nonsense', flush=True); time.sleep(60)"]


def test_a_worker_that_breaks_the_protocol_is_ended_and_its_job_fails(tmp_path):
    seen = []
    plan = Babbler(preset="wan-tiny", model=None, warm_up=False, settings=from_environment(tmp_path))
    supervisor = Supervisor(plan, lambda job_id, event: seen.append((job_id, event)))
    supervisor.run("a job", request(), tmp_path)
    wait_for(lambda: seen)
    assert seen[0][0] == "a job" and isinstance(seen[0][1], Failed)
    supervisor.close()


ENGINE_PROGRAM = """
import sys, threading
from pathlib import Path
from backend.engine.engine import Engine
from tests.backend.conftest import request
engine = Engine(Path(sys.argv[1]), pipeline="tests.fake_pipeline")
jobs = [engine.submit(request("a slow square", steps=60)), engine.submit(request())]
for _, event in engine.events(jobs[0].id):
    if event.kind == "step":
        break
print(engine.workers()[0].pid, *(job.id for job in jobs), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_dead_parent_takes_its_worker_with_it_and_the_next_engine_goes_on(make_engine, tmp_path, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", ENGINE_PROGRAM, str(tmp_path / "data")],
        cwd=PROJECT_FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pid, running, waiting = parent.stdout.readline().split()
    assert is_alive(int(pid))
    parent.send_signal(number)
    parent.communicate(timeout=10)
    wait_for(lambda: not is_alive(int(pid)), seconds=3)
    engine = make_engine()
    assert all_events(engine, running)[-1] == Failed(
        "The studio ended unexpectedly while this video was being made", "Make it again"
    )
    assert isinstance(all_events(engine, waiting)[-1], Finished)
