"""Programs are compiled while weights are read, and the first job reports its preparation."""

import threading
import time

import jax
import numpy as np
import pytest

from backend.errors import Stopped
from backend.pipeline import load as load_module
from backend.pipeline.load import warm_up_in_background
from backend.pipeline.warm_up import warm_up
from backend.schemas.events import Compiling, Loading
from backend.schemas.request import GenerationRequest
from backend.settings import from_environment
from presets import load_preset
from tests.clock import is_within

PRESET = load_preset("wan-tiny")
REQUEST = GenerationRequest.from_preset(PRESET, prompt="a red circle", seed=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.parity
@pytest.mark.demo_model
def test_after_loading_nothing_is_left_to_compile(folder):
    told = []
    loaded = load_module.load(PRESET, None, told.append, request=REQUEST)
    left = list(warm_up(loaded.model, REQUEST))
    reading = [event for event in told if isinstance(event, Loading)]
    waited = [event for event in told if isinstance(event, Compiling)]
    assert reading[-1].bytes_done == reading[-1].bytes_total
    # waiting for the compiler is reported only after the weights
    assert not waited or told.index(waited[0]) > told.index(reading[-1])
    known = len({event.index for event in left})
    assert known < 7  # the first ones were compiled meanwhile; the others are compiled now
    assert all(event.total == known for event in left)
    assert list(warm_up(loaded.model, REQUEST)) == []


@pytest.mark.parity
@pytest.mark.demo_model
def test_the_weights_are_the_same_with_it_and_without(folder):
    """Tracing programs in one thread does not change the weights that the other thread reads."""
    plain = load_module.load(PRESET, None, lambda event: None).weights
    beside = load_module.load(PRESET, None, lambda event: None, request=REQUEST).weights
    assert jax.tree.structure(plain) == jax.tree.structure(beside)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(beside), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parity
@pytest.mark.demo_model
def test_the_speed_of_reading_is_told(folder, monkeypatch):
    monkeypatch.setattr("backend.weights.read.SECONDS_BETWEEN_EVENTS", 0.0)
    told = []
    load_module.load(PRESET, None, told.append)
    reading = [event for event in told if isinstance(event, Loading)]
    assert reading[-1].bytes_per_second > 1e6 and len(reading) > 3


@pytest.mark.parity
@pytest.mark.demo_model
def test_programs_are_numbered_and_their_seconds_are_learned(folder, monkeypatch):
    monkeypatch.setenv("STUDIO_CACHE_DIR", str(folder / "cache"))  # nothing is stored there
    loaded = load_module.load(PRESET, None, lambda event: None)
    events = list(warm_up(loaded.model, REQUEST))
    total = events[0].total
    assert total == len(events) > 3 and [event.index for event in events] == list(range(1, total + 1))
    assert events[0].seconds_left == 0 and all(event.seconds_left > 0 for event in events[1:])
    assert (from_environment().cache_dir / "compile-seconds.json").is_file()
    other = REQUEST.with_changes(width=128)
    again = list(warm_up(loaded.model, other))
    assert again[0].seconds_left > 0  # known from the previous size


class Slow:
    """A stand-in for `warm_up` whose programs take `seconds`, or until `go` is set. `made` counts the finished programs."""

    def __init__(self, seconds: float = 0.1, error: Exception | None = None) -> None:
        self.made, self._seconds, self._error = 0, seconds, error
        self.has_begun, self.go, self.is_over = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, model, request):
        for index in range(1, 6):
            yield Compiling(f"program {index}")
            self.has_begun.set()
            self.go.wait(self._seconds)
            if self._error:
                self.is_over.set()
                raise self._error
            self.made = index
        self.is_over.set()


def test_it_ends_after_the_program_that_it_is_making_and_says_which(monkeypatch):
    slow, told = Slow(seconds=60.0), []
    monkeypatch.setattr(load_module, "warm_up", slow)
    with warm_up_in_background(None, REQUEST, lambda event: (told.append(event), slow.go.set())):
        assert slow.has_begun.wait(60)
    assert slow.made == 1 and told == [Compiling("program 1")]


@pytest.mark.bench
def test_a_reading_that_is_stopped_does_not_wait_for_it(monkeypatch):
    slow, told = Slow(seconds=5.0), []
    monkeypatch.setattr(load_module, "warm_up", slow)
    began = time.monotonic()
    with pytest.raises(Stopped), warm_up_in_background(None, REQUEST, told.append):
        raise Stopped
    assert is_within(time.monotonic() - began, 1) and told == []


def test_what_it_cannot_make_is_left_to_the_video(monkeypatch):
    slow = Slow(error=ValueError("no"))
    monkeypatch.setattr(load_module, "warm_up", slow)
    with warm_up_in_background(None, REQUEST, lambda event: None):
        slow.is_over.wait(60)


def test_without_a_request_it_does_nothing(monkeypatch):
    monkeypatch.setattr(load_module, "warm_up", None)
    before = threading.active_count()
    with warm_up_in_background(None, None, lambda event: None):
        assert threading.active_count() == before
