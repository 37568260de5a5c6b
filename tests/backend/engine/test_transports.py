"""The transport can be replaced: another kind needs only a module and a table entry, and the queue works with it."""

import pytest

from backend.schemas.events import Cancelled, Finished, Step
from backend.shares import Share
from backend.worker_pool.transports import TRANSPORTS
from tests.backend.conftest import all_events, request, wait_for
from tests.thread_transport import ThreadTransport


@pytest.fixture
def engine(make_engine, monkeypatch):
    monkeypatch.setitem(TRANSPORTS, "thread", ThreadTransport)
    return make_engine(transport="thread", shares=(Share(), Share()))


def test_videos_are_made_through_another_kind_of_link(engine):
    jobs = [engine.submit(request(f"square {number}")) for number in range(3)]
    assert all(isinstance(all_events(engine, job.id)[-1], Finished) for job in jobs)
    assert [worker.pid for worker in engine.pool.workers()] == [None, None]


def test_a_cancel_goes_through_another_kind_of_link(engine, close_gate):
    close_gate("a held square")
    stopped, other = engine.submit(request("a held square")), engine.submit(request())
    next(event for _, event in engine.event_log.follow(stopped.id) if isinstance(event, Step))
    engine.queue.cancel(stopped.id)
    assert isinstance(all_events(engine, stopped.id)[-1], Cancelled)
    assert isinstance(all_events(engine, other.id)[-1], Finished)


def test_closing_ends_it_in_the_middle_of_a_job(engine, close_gate):
    gate = close_gate("a held square")
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.pool.workers()))
    job = engine.submit(request("a held square"))
    next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, Step))
    gate.open()  # workers that share a process do not notice a request to end
    engine.close()
