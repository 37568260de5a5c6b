"""Events arrive while the work continues."""

import threading

import pytest

from backend.errors import Stopped
from backend.pipeline.live_events import stop_when, stream_events
from backend.schemas.events import Loading


def test_each_event_arrives_before_the_work_continues():
    seen = threading.Event()

    def work(tell):
        tell(Loading(1, 2, "it"))
        assert seen.wait(60)  # only once the first has been looked at
        tell(Loading(2, 2, "it"))

    events = stream_events(work)
    assert next(events).bytes_done == 1
    seen.set()
    assert [event.bytes_done for event in events] == [2]


def test_what_the_work_raises_comes_after_what_it_told():
    def work(tell):
        tell(Loading(1, 2, "it"))
        raise OSError("the disk is full")

    events = stream_events(work)
    assert next(events) == Loading(1, 2, "it")
    with pytest.raises(OSError, match="disk is full"):
        next(events)


def test_work_that_is_stopped_ends_when_it_next_reports():
    told, stopped = [], threading.Event()
    tell = stop_when(stopped.is_set, told.append)
    tell(Loading(1, 2, "it"))
    stopped.set()
    with pytest.raises(Stopped):
        tell(Loading(2, 2, "it"))
    assert told == [Loading(1, 2, "it")]
