"""An engine with the stand-in pipeline, and requests for it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.engine.engine import Engine
from backend.schemas.events import Event
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.fake_hub import FakeHub
from tests.hub_runs import demo_hub

FAKE = "tests.fake_pipeline"


@pytest.fixture
def make_engine(tmp_path) -> Iterator[Callable[..., Engine]]:
    """A factory of engines over one data folder. All are closed at the end."""
    engines = []

    def make(data_dir: Path = tmp_path / "data", **options) -> Engine:
        engines.append(Engine(data_dir, **{"pipeline": FAKE, **options}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine) -> Engine:
    return make_engine()


@pytest.fixture
def hub(tmp_path) -> Iterator[FakeHub]:
    with demo_hub(tmp_path) as hub:
        yield hub


def request(prompt: str = "a red square", **changes) -> GenerationRequest:
    """A short request."""
    values = {"steps": 3, "num_frames": 17, "seed": 1, **changes}
    return GenerationRequest.from_preset(load_preset("wan-tiny"), prompt=prompt, **values)


def all_events(engine: Engine, job_id: str, after: int = 0) -> list[Event]:
    """Return the job's events up to the final event."""
    return [event for _, event in engine.event_log.follow(job_id, after)]


def wait_for(is_true: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until the condition is true. Raises: AssertionError after a time limit."""
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def wait_for_calls(owner: object, method: str, count: int = 2) -> None:
    """Wait until a method of this object was called `count` times. With one calling thread, two calls mean that
    the first call has ended.
    """
    calls, original = [], getattr(owner, method)
    setattr(owner, method, lambda *given: (calls.append(given), original(*given))[1])
    wait_for(lambda: len(calls) >= count)
    delattr(owner, method)
