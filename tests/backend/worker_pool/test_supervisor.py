"""The worker may die or hang in any way and at any moment. Its job resumes from its last step, or fails with its history."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.schemas.events import Cancelled, Compiling, Encoding, Finished, Interrupted, Loading, Step
from backend.settings import PROJECT_FOLDER, from_environment
from backend.worker_pool import supervisor as supervisor_module
from backend.worker_pool.supervisor import Supervisor
from backend.workers import watchdog
from backend.workers.process import WorkerPlan
from tests.backend.conftest import all_events, request, wait_for
from tests.clock import is_within


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A dead process that was not yet waited for counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def first_step(engine, job_id: str) -> None:
    next(event for _, event in engine.event_log.follow(job_id) if isinstance(event, Step))


def steps_of(engine, job_id: str) -> list[int]:
    """Return the generated steps. A worker that resumes a job first reports its last step again, which counts once."""
    steps = [event.index for event in all_events(engine, job_id) if isinstance(event, Step)]
    return [step for step, before in zip(steps, [0, *steps], strict=False) if step != before]


def interruptions_of(engine, job_id: str) -> list[Interrupted]:
    return [event for event in all_events(engine, job_id) if isinstance(event, Interrupted)]


def test_a_killed_workers_job_continues_before_the_next_one(engine, close_gate):
    gate = close_gate("a held square", "step 3")
    job, following = engine.submit(request("a held square", steps=5)), engine.submit(request())
    gate.wait()
    pid = engine.pool.workers()[0].pid
    os.kill(pid, signal.SIGKILL)
    gate.open()
    assert steps_of(engine, job.id) == [1, 2, 3, 4, 5]
    (stop,) = interruptions_of(engine, job.id)
    assert (stop.cause, stop.by) == ("The worker was killed by SIGKILL, from outside", "signal")
    assert stop.place == "step 3 of 5"
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert engine.jobs.find(following.id).started > engine.jobs.find(job.id).ended
    assert engine.pool.workers()[0].pid != pid and not is_alive(pid)


def test_a_worker_that_dies_in_the_same_step_each_time_fails_its_job_with_the_history(engine, tmp_path):
    job = engine.submit(request("fall", steps=5))
    final = all_events(engine, job.id)[-1]
    assert final.cause == "It stopped three times at step 3 of 5: The worker was killed by SIGKILL, from outside"
    assert len(interruptions_of(engine, job.id)) == 3 and steps_of(engine, job.id) == [1, 2]


def test_out_of_memory_is_recognised_and_has_its_remedy(engine, monkeypatch):
    kills = iter(range(100))
    monkeypatch.setattr(supervisor_module, "count_out_of_memory_kills", lambda: next(kills))
    final = all_events(engine, engine.submit(request("fall", steps=5)).id)[-1]
    assert final.cause == (
        "It stopped three times at step 3 of 5: The worker was killed by SIGKILL, from outside; "
        "The machine ran out of memory, and the system ended the worker"
    )  # the first worker started before the counter
    assert final.fix == "Choose a smaller size or fewer frames, or free memory on the machine"


def test_a_worker_that_ends_itself_points_to_its_log(engine, tmp_path):
    final = all_events(engine, engine.submit(request("die now")).id)[-1]
    assert final.cause == "It stopped three times at the start: The worker ended with exit code 9"
    assert final.fix.startswith(f"Generate it again; if it stops again, the reason is at the end of {tmp_path}/data/logs/")


def test_a_lost_device_ends_the_worker_and_the_job_continues(engine):
    job = engine.submit(request("lost", steps=4))
    assert isinstance(all_events(engine, job.id)[-1], Finished) and steps_of(engine, job.id) == [1, 2, 3, 4]
    assert interruptions_of(engine, job.id)[0].cause == "A device was lost (UNAVAILABLE: the square has left the slice)"


@pytest.mark.parametrize(
    ("is_frozen", "silence", "least", "cause"),
    [(True, 5.0, 30.0, "The worker gave no sign of life for"), (False, 30.0, 2.0, "The worker reported nothing for")],
)
def test_a_worker_that_hangs_is_asked_for_its_stacks_and_its_job_continues(
    make_engine, close_gate, tmp_path, monkeypatch, is_frozen, silence, least, cause
):
    engine, gate = make_engine(), close_gate("a held square", "step 3")
    wait_for(lambda: engine.pool.status().state == "ready")
    monkeypatch.setattr(watchdog, "SILENCE_SECONDS", silence)
    monkeypatch.setattr(watchdog.Watchdog, "least", least)
    job = engine.submit(request("a held square", steps=4))
    gate.wait()
    if is_frozen:
        os.kill(engine.pool.workers()[0].pid, signal.SIGSTOP)
    wait_for(lambda: engine.events.interruptions(job.id))
    gate.open()
    assert isinstance(all_events(engine, job.id)[-1], Finished) and steps_of(engine, job.id) == [1, 2, 3, 4]
    (stop,) = interruptions_of(engine, job.id)
    assert stop.cause.startswith(cause) and stop.cause.endswith("and was ended") and stop.place == "step 3 of 4"
    logs = "".join(log.read_text() for log in (tmp_path / "data" / "logs").iterdir())
    assert ("pass_gate" in logs) == (not is_frozen)  # a frozen process cannot write


def test_stop_frees_a_worker_that_hangs_while_it_encodes(make_engine, monkeypatch):
    engine = make_engine()
    wait_for(lambda: engine.pool.status().state == "ready")
    monkeypatch.setattr(watchdog, "STOP_SECONDS", 2.0)
    job, following = engine.submit(request("stuck")), engine.submit(request())
    wait_for(lambda: isinstance(engine.events.last(job.id), Encoding))
    engine.queue.cancel(job.id)
    assert all_events(engine, job.id)[-1] == Cancelled(None)
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert is_within(engine.jobs.find(following.id).ended - engine.jobs.find(job.id).started, 30), "not the minute that it hangs"


@pytest.mark.parametrize(
    ("gate_place", "moment", "place"),
    [
        pytest.param("load 2", Loading, "the start", marks=pytest.mark.slow),
        ("compile", Compiling, "compiling the square"),
        ("step 2", Step, "step 2 of 3"),
    ],
)
def test_a_worker_that_is_stopped_in_any_stage_is_noticed(make_engine, close_gate, monkeypatch, gate_place, moment, place):
    gate = close_gate("a held one", gate_place)
    engine = make_engine(start_worker=False, model="a held one")
    job = engine.submit(request("a held one"))
    next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, moment))
    os.kill(engine.pool.workers()[0].pid, signal.SIGSTOP)
    gate.open()
    monkeypatch.setattr(watchdog, "SILENCE_SECONDS", 5.0)
    assert isinstance(all_events(engine, job.id)[-1], Finished)
    assert [stop.place for stop in interruptions_of(engine, job.id)] == [place]


def test_a_new_worker_stands_ready_after_a_crash(engine):
    wait_for(lambda: engine.pool.status().state == "ready")
    pid = engine.pool.workers()[0].pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine.pool.workers()[0].pid not in (pid, None) and engine.pool.status().state == "ready")


def test_a_worker_that_always_dies_is_not_started_for_ever_and_only_the_newest_logs_are_kept(make_engine, tmp_path, caplog):
    engine, logs = make_engine(model="deadly"), tmp_path / "data" / "logs"

    def deaths() -> int:
        return sum(record.getMessage().startswith("The worker ended with exit code 7") for record in caplog.records)

    def stays_down_after(starts: int) -> bool:
        wait_for(lambda: engine.pool.workers()[0].pid is None and deaths() == starts)
        time.sleep(0.5)
        return engine.pool.workers()[0].pid is None and deaths() == starts

    assert stays_down_after(3)
    assert engine.pool.status().detail.startswith("The worker ended with exit code 7; its log is")
    for starts in (8, 13):  # three for the job and two others
        cause = all_events(engine, engine.submit(request()).id)[-1].cause
        assert cause == "It stopped three times at the start: The worker ended with exit code 7"
        assert stays_down_after(starts)
    assert len(list(logs.iterdir())) == 10


def test_a_worker_that_somebody_kills_while_it_is_idle_always_comes_back(engine):
    for _ in range(4):
        wait_for(lambda: engine.pool.status().state == "ready")
        os.kill(engine.pool.workers()[0].pid, signal.SIGKILL)
        wait_for(lambda: engine.pool.status().state != "ready")
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


@pytest.mark.bench
def test_closing_ends_the_worker_in_the_middle_of_a_job(make_engine, close_gate):
    engine, _ = make_engine(), close_gate("a held square")
    job = engine.submit(request("a held square"))
    first_step(engine, job.id)
    pid, began = engine.pool.workers()[0].pid, time.monotonic()
    engine.close()
    assert not is_alive(pid) and is_within(time.monotonic() - began, 2)


class Babbler(WorkerPlan):
    """Start a program that does not speak the worker protocol."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; print('nonsense', flush=True); time.sleep(60)"]


def test_a_worker_that_breaks_the_protocol_is_ended_and_its_job_interrupted(tmp_path):
    seen = []
    plan = Babbler(preset="wan-tiny", model=None, warm_up=False, settings=from_environment(tmp_path))
    supervisor = Supervisor(plan, lambda job_id, event: seen.append((job_id, event)))
    supervisor.run("a job", request(), tmp_path)
    wait_for(lambda: seen)
    assert seen[0][0] == "a job" and isinstance(seen[0][1], Interrupted)
    supervisor.close()


ENGINE_PROGRAM = """
import sys, threading
from pathlib import Path
from backend.engine.engine import Engine
from tests.backend.conftest import request
from tests.clock import is_within
engine = Engine(Path(sys.argv[1]), pipeline="tests.fake_pipeline")
jobs = [engine.submit(request("a held square", steps=6)), engine.submit(request())]
for _, event in engine.event_log.follow(jobs[0].id):
    if event.kind == "step":
        break
print(engine.pool.workers()[0].pid, *(job.id for job in jobs), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGINT))]
)
def test_a_dead_parent_takes_its_worker_with_it_and_the_next_engine_continues(make_engine, close_gate, tmp_path, number):
    gate = close_gate("a held square", "step 3")
    parent = subprocess.Popen(
        [sys.executable, "-c", ENGINE_PROGRAM, str(tmp_path / "data")],
        cwd=PROJECT_FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pid, running, waiting = parent.stdout.readline().split()
    gate.wait()
    assert is_alive(int(pid))
    parent.send_signal(number)
    parent.communicate(timeout=60)
    wait_for(lambda: not is_alive(int(pid)))
    gate.open()
    engine = make_engine()
    assert isinstance(all_events(engine, running)[-1], Finished)
    steps = steps_of(engine, running)
    assert steps == sorted(set(steps)) and steps[-1] == 6, "a step was made again"
    assert len(steps) >= 5  # a step's state may have been stored before the dying server received its event
    (stop,) = interruptions_of(engine, running)
    assert stop.by == "server"
    assert isinstance(all_events(engine, waiting)[-1], Finished)
