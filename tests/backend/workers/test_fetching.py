"""A model that is fetched: nobody who waits for it misses its events, and it ends when it is given up."""

import os
import threading

import pytest

from backend.contract.events import Loading
from backend.errors import ModelError
from backend.workers.fetching import Fetch

KEY = ("model", "float32")


def test_it_runs_in_a_patient_thread_and_tells_who_waits():
    may_go_on, seen, policies = threading.Event(), [], []

    def load(tell):
        policies.append(os.sched_getscheduler(0))
        tell(Loading(0, 2, "a"))
        may_go_on.wait()
        tell(Loading(2, 2, "a"))

    fetch = Fetch(KEY, load)
    assert fetch.is_running and fetch.key == KEY
    threading.Timer(0.1, may_go_on.set).start()
    fetch.wait(seen.append)
    assert [event.bytes_done for event in seen][-1] == 2 and not fetch.is_running
    assert policies == [os.SCHED_IDLE] and os.sched_getscheduler(0) != os.SCHED_IDLE


def test_it_is_given_up_at_its_next_event():
    begun, told = threading.Event(), []

    def load(tell):
        while True:
            begun.set()
            tell(Loading(0, 2, "a"))
            told.append(True)

    fetch = Fetch(KEY, load)
    begun.wait()
    fetch.stop()
    assert not fetch.is_running


def test_whoever_stops_waiting_stops_it_too():
    def load(tell):
        while True:
            tell(Loading(0, 2, "a"))

    def refuse(event):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        Fetch(KEY, load).wait(refuse)


@pytest.mark.parametrize("error", [ModelError("no"), RuntimeError("RESOURCE_EXHAUSTED")])
def test_a_failure_is_left_to_the_job_that_needs_the_model(error):
    def load(tell):
        raise error

    Fetch(KEY, load).wait(lambda event: None)
