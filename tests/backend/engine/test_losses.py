"""Workers whose machines fail during work, and the queue positions of waiting jobs. The test simulates the transports."""

import threading

import pytest

from backend.engine import dispatcher
from backend.schemas.events import Failed, Finished, Interrupted, Queued
from backend.schemas.shape import Shape
from backend.schemas.worker import Device, WorkerFacts
from backend.shares import Share
from backend.worker_pool.transports import TRANSPORTS
from backend.workers.exit_reasons import LOST
from backend.workers.messages import Facts, Run
from tests.backend.conftest import all_events, request, wait_for
from tests.thread_transport import ThreadTransport


class LossyTransport:
    """A worker whose machine fails as soon as it has a job. It reports warm programs, so that it gets the job first."""

    pid = None

    def __init__(self, plan, log, on_message, on_exit):
        self._on_exit = on_exit
        shape = Shape.from_request(request())
        facts = WorkerFacts(devices=(Device(name="d", kind="d"),), model=shape.model, warm=frozenset({shape}))
        threading.Thread(target=on_message, args=(Facts(facts=facts),)).start()

    def send(self, message):
        if isinstance(message, Run):
            threading.Thread(target=self._on_exit, args=(LOST,)).start()

    def kill(self):
        pass

    def stop(self):
        pass


def lossy_then_whole(count: int):
    """Open `count` lossy workers, then whole workers."""
    opened = []

    def open_link(plan, log, on_message, on_exit):
        opened.append(plan.name)
        kind = LossyTransport if len(opened) <= count else ThreadTransport
        return kind(plan, log, on_message, on_exit)

    return open_link


@pytest.mark.parametrize(("lossy", "end"), [(1, Finished), (2, Finished), (3, Failed)])
def test_a_lost_workers_job_goes_to_another_twice_at_most(make_engine, monkeypatch, lossy, end):
    monkeypatch.setitem(TRANSPORTS, "lossy", lossy_then_whole(lossy))
    engine = make_engine(transport="lossy", shares=(Share(),) * (lossy + 1))
    wait_for(lambda: all(worker.facts.warm for worker in engine.pool.workers()[:lossy]))
    events = all_events(engine, engine.submit(request()).id)
    assert isinstance(events[-1], end) and sum(event.is_final for event in events) == 1
    assert [event.by for event in events if isinstance(event, Interrupted)] == ["loss"] * lossy
    assert len(engine.pool.workers()) == 1
    if end is Failed:
        assert events[-1].cause == "The machine of its worker was lost three times"


def test_a_job_waits_while_no_worker_is_there(make_engine, monkeypatch):
    monkeypatch.setitem(TRANSPORTS, "lossy", lossy_then_whole(1))
    engine = make_engine(transport="lossy")
    job = engine.submit(request())
    wait_for(lambda: engine.events.interruptions(job.id) and engine.jobs.find(job.id).state == "queued")
    assert engine.pool.workers() == () and engine.pool.status().state == "starting" and engine.queue.position(job.id) == 0


def test_a_job_whose_worker_goes_in_this_moment_waits_again(make_engine, monkeypatch):
    engine = make_engine()
    pool = engine.queue.pool
    answers = iter([False])
    give = pool.assign
    monkeypatch.setattr(pool, "assign", lambda *job: next(answers, None) is not False and give(*job))
    events = all_events(engine, engine.submit(request()).id)
    assert isinstance(events[-1], Finished) and not any(isinstance(event, Interrupted) for event in events)


def test_places_far_behind_are_reported_now_and_then(make_engine, close_gate, monkeypatch):
    close_gate("a held square")
    monkeypatch.setattr(dispatcher, "_NEAR_PLACES", 2)
    monkeypatch.setattr(dispatcher, "_FAR_SECONDS", 600.0)
    engine = make_engine()
    engine.submit(request("a held square"))
    waiting = [engine.submit(request(f"square {number}")) for number in range(6)]
    wait_for(lambda: engine.queue._next_report)
    engine.queue.cancel(waiting[0].id)
    near, far = engine.events.last(waiting[2].id), engine.events.last(waiting[5].id)
    assert (near, far, engine.queue.position(waiting[5].id)) == (Queued(1), Queued(5), 4)
    engine.queue._next_report = 0.0
    wait_for(lambda: engine.events.last(waiting[5].id) == Queued(4))
