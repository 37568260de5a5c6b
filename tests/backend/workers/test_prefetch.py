"""Models and programs are prepared during a job. A caller that waits for them receives all events, and a cancelled preparation
ends.
"""

import os
import threading

import pytest

from backend.errors import ModelError
from backend.schemas.events import Compiling, Loading
from backend.schemas.shape import Shape
from backend.workers.prefetch import Prefetch
from tests.backend.conftest import request

KEY = ("model", "float32")
SHAPE, OTHER = Shape.from_request(request()), Shape.from_request(request(width=128))


def forever(tell):
    while True:
        tell(Loading(0, 2, "a"))


def at_once(tell):
    tell(Loading(2, 2, "a"))


class Compiler:
    """Compile two programs, each until `may_end` is set."""

    def __init__(self):
        self.begun, self.may_end, self.done = threading.Event(), threading.Event(), []

    def __call__(self, tell):
        for name in ("first", "second"):
            tell(Compiling(name))
            self.begun.set()
            self.may_end.wait()
            self.done.append(name)


def test_it_runs_in_a_patient_thread_and_tells_who_waits():
    may_go_on, seen, policies = threading.Event(), [], []

    def load(tell):
        policies.append(os.sched_getscheduler(0))
        tell(Loading(0, 2, "a"))
        may_go_on.wait()
        tell(Loading(2, 2, "a"))

    fetch = Prefetch(KEY, load)
    assert fetch.is_running and fetch.key == KEY
    threading.Timer(0.1, may_go_on.set).start()
    fetch.wait(SHAPE, seen.append)
    assert [event.bytes_done for event in seen][-1] == 2
    assert policies == [os.SCHED_IDLE] and os.sched_getscheduler(0) != os.SCHED_IDLE


def test_a_model_that_is_given_up_ends_at_its_next_event():
    fetch = Prefetch(KEY, forever)
    fetch.abandon()
    assert not fetch.is_running


def test_whoever_stops_waiting_stops_it_too():
    def refuse(event):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        Prefetch(KEY, forever).wait(SHAPE, refuse)


@pytest.mark.parametrize("error", [ModelError("no"), RuntimeError("RESOURCE_EXHAUSTED")])
def test_a_failure_is_left_to_the_job_that_needs_the_model(error):
    def load(tell):
        raise error

    Prefetch(KEY, load, SHAPE, at_once).wait(SHAPE, lambda event: None)


def test_a_job_waits_for_its_own_programs():
    compiler, seen = Compiler(), []
    fetch = Prefetch(KEY, at_once, SHAPE, compiler)
    compiler.begun.wait()
    threading.Timer(0.1, compiler.may_end.set).start()
    fetch.wait(SHAPE, seen.append)
    assert compiler.done == ["first", "second"] and seen[-1] == Compiling("second")


def test_a_job_of_another_shape_waits_for_no_program_and_only_that_one_comes_to_its_end():
    compiler = Compiler()
    fetch = Prefetch(KEY, at_once, SHAPE, compiler)
    compiler.begun.wait()
    fetch.wait(OTHER, lambda event: None)
    assert fetch.is_running and compiler.done == []
    compiler.may_end.set()
    fetch._thread.join()
    assert compiler.done == ["first"]
