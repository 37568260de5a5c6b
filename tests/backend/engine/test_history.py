"""Samples of the machine: steps, queue, memory, disk; kept for a day and over a restart."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from backend.engine.history import DAY_SECONDS, History
from backend.engine.store import Store
from backend.schemas.events import Decoding, Step
from backend.schemas.worker import Device
from tests.backend.conftest import all_events, request


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "jobs.sqlite3")) as store:
        yield store


def history(store: Store, folder: Path, devices=()) -> History:
    return History(store.tables, folder, lambda: (2, 1), lambda: devices)


def step(seconds: float) -> Step:
    return Step(index=1, total=2, seconds=seconds, seconds_left=0.0)


def test_a_sample_has_the_mean_of_the_steps_before_it_and_bytes_that_are_told(store, tmp_path):
    devices = [Device(name=f"TPU_{n}", kind="v6e", bytes_in_use=n * 100, bytes_limit=1000) for n in (1, 2)]
    made = history(store, tmp_path, [*devices, Device(name="cpu", kind="cpu")])
    for event in (step(1.0), step(3.0), Decoding(1, 2)):
        made.record_step("job", event)
    sample = made.take_sample()
    assert (sample.waiting, sample.running, sample.step_seconds) == (2, 1, 2.0)
    assert (sample.device_bytes, sample.device_limit) == (300, 2000) and 0 < sample.disk_bytes <= sample.disk_limit
    assert made.take_sample().step_seconds is None
    made.close()


def test_a_day_is_kept_over_a_restart_and_no_more(store, tmp_path):
    made, now = history(store, tmp_path), time.time()
    for age in (DAY_SECONDS + 60, DAY_SECONDS - 60, 30):
        made.take_sample(now - age)
    made.take_sample(now)
    made.close()
    again = history(store, tmp_path)
    assert [round(now - sample.time) for sample in again.samples_since(2 * DAY_SECONDS)] == [DAY_SECONDS - 60, 30, 0]
    assert len(again.samples_since(3600)) == 2 and again.samples_since(3600)[0].device_bytes is None
    again.close()


def test_an_engine_takes_samples_of_its_own_steps(engine):
    all_events(engine, engine.submit(request()).id)
    sample = engine.history.take_sample()
    assert sample.step_seconds is not None and sample.waiting == 0
