"""Tests that a closed gate stops the stand-in pipeline at its place, in each process, until it is opened or the worker ends."""

import threading
import time
from collections.abc import Iterator

import pytest

from backend.engine.engine import Engine
from backend.schemas.events import Cancelled, Finished, Loading
from tests import gates
from tests.backend.conftest import FAKE, all_events, request, wait_for

PLACES = {"step 1": "encoding", "step 3": "step", "compile": "compiling", "frame 2": "upscaling"}
"""The last event before each place."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("data"), pipeline=FAKE)
    yield engine
    engine.close()


@pytest.fixture
def heartbeat() -> Iterator[None]:
    """Run a thread named heartbeat, so that this process looks like a worker that continues."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, name="heartbeat")
    thread.start()
    yield
    is_over.set()
    thread.join()


def held(engine: Engine, place: str):
    """Submit a job and wait until it is at the closed gate of this place."""
    job = engine.submit(request("a held square", upscale=2 if place.startswith("frame") else 0))
    wait_for(lambda: (event := engine.events.last(job.id)) is not None and event.kind == PLACES[place])
    return job


@pytest.mark.parametrize("place", PLACES)
def test_a_video_waits_until_its_gate_is_open_and_others_pass(engine, close_gate, place):
    gate = close_gate("a held square", place)
    job = held(engine, place)
    gate.wait()
    assert engine.jobs.find(job.id).state == "running"
    gate.open()
    assert isinstance(all_events(engine, job.id)[-1], Finished)
    close_gate("another square", place)
    assert isinstance(all_events(engine, engine.submit(request("a held square")).id)[-1], Finished)


@pytest.mark.parametrize("place", PLACES)
def test_a_video_that_waits_can_be_cancelled(engine, close_gate, place):
    close_gate("a held square", place)
    job = held(engine, place)
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, job.id)[-1], Cancelled)


def test_a_model_waits_while_it_is_read(tmp_path, close_gate):
    gate = close_gate("a held model", "load 2")
    engine = Engine(tmp_path, "a held model", pipeline=FAKE)
    try:
        gate.wait()
        job = engine.submit(request())
        gate.open()
        events = all_events(engine, job.id)
        assert all(event.bytes_done >= 2_000_000 for event in events if isinstance(event, Loading))
        assert isinstance(events[-1], Finished)
    finally:
        engine.close()


def test_a_gate_that_nobody_opens_is_an_error(close_gate, heartbeat, monkeypatch):
    gate = close_gate("a held square")
    monkeypatch.setattr(gates, "LIMIT_SECONDS", 0.1)
    with pytest.raises(AssertionError, match="nothing arrived at 'step 2'"):
        gate.wait()
    with pytest.raises(TimeoutError, match="no test has opened the gate at 'step 2'"):
        gates.pass_gate("a held square", "step 2")


def test_a_worker_that_is_asked_to_end_waits_at_no_gate(close_gate):
    close_gate("a held square")
    gates.pass_gate("a held square", "step 2")  # this process has no heartbeat


def test_all_gates_are_open_at_the_end_of_a_test(heartbeat):
    with gates.gates() as close:
        close("a held square")
    gates.pass_gate("a held square", "step 2")


def test_a_place_that_no_pipeline_knows_is_refused(close_gate):
    with pytest.raises(AssertionError, match="stop 2"):
        close_gate("a held square", "stop 2")


@pytest.mark.parametrize("is_open_before", [False, True])
def test_several_hosts_ask_equally_often(close_gate, heartbeat, monkeypatch, is_open_before):
    """The first host's answer to each call of `is_cancelled` is sent to the other hosts."""
    monkeypatch.setattr(gates, "_is_first_host", lambda: threading.current_thread().name == "first")
    gate, sent, asked = close_gate("a held square"), threading.Semaphore(0), {"first": 0, "other": 0}

    def is_cancelled() -> bool:
        name = threading.current_thread().name
        asked[name] += 1
        if name == "first":
            sent.release()
        else:
            assert sent.acquire(timeout=60)
        return False

    first, other = (
        threading.Thread(target=gates.pass_gate, args=("a held square", "step 2", is_cancelled), name=name) for name in asked
    )
    if is_open_before:
        gate.open()
    first.start()
    gate.wait()
    while not is_open_before and asked["first"] < 3:
        time.sleep(0.01)
    gate.open()
    first.join(60)
    other.start()  # the gate is open now, but the first host found it closed in its first rounds
    other.join(60)
    assert asked["first"] == asked["other"] > 0
