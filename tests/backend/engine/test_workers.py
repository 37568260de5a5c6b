"""Check several workers behind one queue: two videos at once, and deaths and cancels that affect one worker."""

import os
import signal
import time

import pytest

from backend.engine.job import Job
from backend.schemas.events import Cancelled, Finished, Interrupted, Queued, Step
from backend.shares import Share
from tests.backend.conftest import all_events, request, wait_for
from tests.clock import is_within


@pytest.fixture
def engine(make_engine):
    engine = make_engine(shares=(Share(), Share()))
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.pool.workers()))
    return engine


@pytest.fixture
def held(engine, close_gate) -> tuple[list, list]:
    """Two jobs that have done one step of four, and the gates at which they wait."""
    prompts = "a held square", "another held square"
    gates = [close_gate(prompt) for prompt in prompts]
    return [begun(engine, prompt) for prompt in prompts], gates


def begun(engine, prompt: str, **changes) -> Job:
    """A job that has done a step."""
    job = engine.submit(request(prompt, **{"steps": 4, **changes}))
    next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, Step))
    return job


def worker_of(engine, job):
    return next(worker for worker in engine.pool.workers() if worker.job_id == job.id)


def test_two_videos_are_made_at_the_same_time(engine, held):
    (first, second), gates = held
    assert [engine.jobs.find(job.id).state for job in (first, second)] == ["running", "running"]
    assert len({worker.pid for worker in engine.pool.workers()}) == 2
    for gate in gates:
        gate.open()
    assert all(isinstance(all_events(engine, job.id)[-1], Finished) for job in (first, second))
    assert engine.jobs.find(second.id).started < engine.jobs.find(first.id).ended


def test_a_killed_workers_job_continues_where_it_was_and_so_do_the_others(engine, held):
    (killed, other), gates = held
    waiting = engine.submit(request())
    os.kill(worker_of(engine, killed).pid, signal.SIGKILL)
    for gate in gates:
        gate.open()
    steps = [event.index for event in all_events(engine, killed.id) if isinstance(event, Step)]
    assert steps == sorted(steps) and set(steps) == {1, 2, 3, 4}  # the step of the kill is reported again, no earlier step is
    assert isinstance(all_events(engine, other.id)[-1], Finished)
    assert isinstance(all_events(engine, waiting.id)[-1], Finished)
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.pool.workers()))


def test_a_worker_that_died_gets_no_job_until_it_is_ready_again(engine, held):
    (killed, other), _ = held
    waiting = engine.submit(request())
    os.kill(worker_of(engine, killed).pid, signal.SIGKILL)
    next(event for _, event in engine.event_log.follow(killed.id) if isinstance(event, Interrupted))
    assert engine.jobs.find(waiting.id).state == engine.jobs.find(killed.id).state == "queued"
    engine.queue.cancel(killed.id)
    assert isinstance(all_events(engine, waiting.id)[-1], Finished)
    assert engine.jobs.find(other.id).state == "running"


def test_a_cancel_reaches_the_worker_that_has_the_job(engine, held):
    (first, second), _ = held
    engine.queue.cancel(second.id)
    assert isinstance(all_events(engine, second.id)[-1], Cancelled)
    assert engine.jobs.find(first.id).state == "running"
    engine.queue.cancel(first.id)
    assert isinstance(all_events(engine, first.id)[-1], Cancelled)


def test_the_next_in_line_waits_for_one_of_those_that_run(engine, held):
    _, gates = held
    third, fourth = engine.submit(request("three")), engine.submit(request("four"))
    assert (engine.queue.position(third.id), engine.queue.position(fourth.id)) == (0, 1)
    gates[0].open()
    events = all_events(engine, fourth.id)
    assert [event.position for event in events if isinstance(event, Queued)][:2] == [1, 0]
    assert isinstance(events[-1], Finished)


def test_a_job_goes_to_the_worker_that_has_its_programs(engine, held, close_gate):
    for gate in held[1]:
        gate.open()
    wait_for(lambda: all(worker.job_id is None for worker in engine.pool.workers()))
    used = []
    for _ in range(3):
        gate = close_gate("a tall square")
        tall = begun(engine, "a tall square", height=128)
        used.append(worker_of(engine, tall).name)
        gate.open()
        all_events(engine, tall.id)
    assert len(set(used)) == 1


@pytest.mark.bench
def test_all_workers_end_at_the_same_time(engine, held):
    began = time.monotonic()
    engine.close()
    assert is_within(time.monotonic() - began, 2)


def test_a_job_that_runs_is_asked_after_by_its_own_worker(engine, close_gate):
    close_gate("a held square")
    job = begun(engine, "a held square")
    assert engine.pool.status(job.id).state == "busy"
    assert {worker.status.state for worker in engine.pool.workers()} == {"busy", "ready"}
    assert engine.pool.status().state == "busy"


def test_runs_are_filed_under_the_kind_of_their_device(engine):
    job = begun(engine, "a square", steps=2)
    all_events(engine, job.id)
    assert [run.device for run in engine._store.runs.load()] == ["square"]
    assert engine.estimates.estimate(request(steps=2)).basis == "measured"
