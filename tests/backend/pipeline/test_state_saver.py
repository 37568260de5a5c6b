"""Check when a stage's state is written during the work, and the cost of writing."""

import errno
import threading

import pytest

from backend.pipeline import state_saver
from backend.pipeline.state_saver import StateSaver


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(state_saver.time, "monotonic", lambda: self.now)

    def copy(self, seconds: float):
        def take():
            self.now += seconds
            return "state"

        return take


def test_a_long_step_is_kept_each_time_and_short_ones_every_two_seconds(monkeypatch):
    clock, written = Clock(monkeypatch), []
    with StateSaver(written.append) as saver:
        assert not saver.is_due()
        clock.now += 3
        assert saver.is_due()
        saver.save(clock.copy(0.008))
        saver._writing.result()
        clock.now += 1.5
        assert not saver.is_due()
        clock.now += 0.6
        assert saver.is_due()
    assert written == ["state"]


def test_copies_take_at_most_a_hundredth_of_the_time(monkeypatch):
    clock = Clock(monkeypatch)
    with StateSaver(lambda state: None) as saver:
        clock.now += 3
        saver.save(clock.copy(0.1))
        saver._writing.result()
        clock.now += 9.8
        assert not saver.is_due()
        clock.now += 0.3
        assert saver.is_due()


def test_a_file_that_is_still_being_written_is_not_waited_for(monkeypatch):
    clock, may_end = Clock(monkeypatch), threading.Event()
    with StateSaver(lambda state: may_end.wait(60)) as saver:
        clock.now += 3
        saver.save(clock.copy(0.0))
        clock.now += 30
        assert not saver.is_due()
        may_end.set()
        saver._writing.result()
        assert saver.is_due()


def test_a_full_disk_is_raised_and_any_other_trouble_only_logged(caplog):
    def full(state):
        raise OSError(errno.ENOSPC, "No space left on device")

    with StateSaver(full) as saver, pytest.raises(OSError, match="No space left"):
        saver.save_last(lambda: "state")

    def broken(state):
        raise ValueError("strange")

    with StateSaver(broken) as saver:
        saver.save_last(lambda: "state")
    assert "could not be saved" in caplog.text
