"""Several workers behind one queue: two videos at once, each worker's death and each cancel its own."""

import os
import signal
import time

import pytest

from backend.contract.events import Cancelled, Finished, Interrupted, Queued, Step
from backend.shares import Share
from tests.backend.conftest import all_events, request, wait_for
from tests.clock import is_within


@pytest.fixture
def engine(make_engine):
    engine = make_engine(shares=(Share(), Share()))
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.workers()))
    return engine


def begun(engine, *prompts: str, **changes) -> list:
    """Jobs that have all done a step."""
    jobs = [engine.submit(request(prompt, **changes)) for prompt in prompts]
    for job in jobs:
        next(event for _, event in engine.events(job.id) if isinstance(event, Step))
    return jobs


def worker_of(engine, job):
    return next(worker for worker in engine.workers() if worker.job_id == job.id)


def test_two_videos_are_made_at_the_same_time(engine):
    first, second = begun(engine, "a slow square", "another slow square", steps=8)
    assert [engine.job(job.id).state for job in (first, second)] == ["running", "running"]
    assert len({worker.pid for worker in engine.workers()}) == 2
    assert all(isinstance(all_events(engine, job.id)[-1], Finished) for job in (first, second))
    assert engine.job(second.id).started < engine.job(first.id).ended


def test_a_killed_workers_job_goes_on_where_it_was_and_so_do_the_others(engine):
    killed, other = begun(engine, "a slow square", "another slow square", steps=4)
    waiting = engine.submit(request())
    os.kill(worker_of(engine, killed).pid, signal.SIGKILL)
    steps = [event.index for event in all_events(engine, killed.id) if isinstance(event, Step)]
    assert steps == sorted(steps) and set(steps) == {1, 2, 3, 4}  # the step at which it died is told again, none before it
    assert isinstance(all_events(engine, other.id)[-1], Finished)
    assert isinstance(all_events(engine, waiting.id)[-1], Finished)
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.workers()))


def test_a_worker_that_died_gets_no_job_until_it_is_ready_again(engine):
    killed, other = begun(engine, "a slow square", "another slow square", steps=30)
    waiting = engine.submit(request())
    os.kill(worker_of(engine, killed).pid, signal.SIGKILL)
    next(event for _, event in engine.events(killed.id) if isinstance(event, Interrupted))
    assert engine.job(waiting.id).state == engine.job(killed.id).state == "queued"
    engine.cancel(killed.id)
    assert isinstance(all_events(engine, waiting.id)[-1], Finished)
    assert engine.job(other.id).state == "running"


def test_a_cancel_reaches_the_worker_that_has_the_job(engine):
    first, second = begun(engine, "a slow square", "another slow square", steps=60)
    engine.cancel(second.id)
    assert isinstance(all_events(engine, second.id)[-1], Cancelled)
    assert engine.job(first.id).state == "running"
    engine.cancel(first.id)
    assert isinstance(all_events(engine, first.id)[-1], Cancelled)


def test_the_next_in_line_waits_for_one_of_those_that_run(engine):
    begun(engine, "a slow square", "another slow square", steps=8)
    third, fourth = engine.submit(request("three")), engine.submit(request("four"))
    assert (engine.position(third.id), engine.position(fourth.id)) == (0, 1)
    events = all_events(engine, fourth.id)
    assert [event.position for event in events if isinstance(event, Queued)][:2] == [1, 0]
    assert isinstance(events[-1], Finished)


def test_a_job_goes_to_the_worker_that_has_its_programs(engine):
    first, second = begun(engine, "a slow square", "a slow wide square", steps=1, width=128)[:2]
    wait_for(lambda: all(worker.job_id is None for worker in engine.workers()))
    tall = begun(engine, "a slow tall square", steps=2, height=128)[0]
    warm = worker_of(engine, tall).name
    all_events(engine, tall.id)
    for _ in range(2):
        again = begun(engine, "a slow tall square", steps=2, height=128)[0]
        assert worker_of(engine, again).name == warm
        all_events(engine, again.id)


@pytest.mark.bench
def test_all_workers_end_at_the_same_time(engine):
    first, second = begun(engine, "a slow square", "another slow square")
    began = time.monotonic()
    engine.close()
    assert is_within(time.monotonic() - began, 2)


def test_a_job_that_runs_is_asked_after_by_its_own_worker(engine):
    job = begun(engine, "a slow square", steps=30)[0]
    assert engine.worker_status(job.id).state == "busy"
    assert {worker.status.state for worker in engine.workers()} == {"busy", "ready"}
    assert engine.worker_status().state == "busy"


def test_runs_are_filed_under_the_kind_of_their_device(engine):
    job = begun(engine, "a square", steps=2)[0]
    all_events(engine, job.id)
    assert [run.device for run in engine._store.timings()] == ["square"]
    assert engine.estimate(request(steps=2)).basis == "measured"
