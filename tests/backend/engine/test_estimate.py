"""Estimates use this machine's runs, preferably of the same shape, and state which runs."""

from dataclasses import asdict, replace

import pytest

from backend.engine.estimate import Run, estimate, runs_on
from backend.schemas.shape import Shape
from tests.backend.conftest import request

WANTED = request(steps=10)
SHAPE = Shape.from_request(WANTED)
TOKENS = WANTED.geometry().num_tokens


def run(shape: Shape = SHAPE, steps: int = 10, tokens: int = TOKENS, **seconds: float) -> Run:
    given = {"encode": 0.5, "denoise": 10.0, "decode": 1.0, "compile": 0.0, **seconds}
    return Run(shape=shape, steps=steps, num_tokens=tokens, seconds=given)


def test_nothing_known_gives_no_number():
    assert estimate(WANTED, SHAPE, [], True) is None
    other = Shape(**{**asdict(SHAPE), "model": "another"})
    assert estimate(WANTED, SHAPE, [run(other)], True) is None


def test_the_same_shape_is_measured_and_scaled_by_steps_only():
    told = estimate(request(steps=20), SHAPE, [run(), run(), run(denoise=100.0)], True)
    assert (told.seconds, told.basis, told.runs, told.compile_seconds) == (21.5, "measured", 3, 0.0)


def test_another_size_is_scaled_and_says_so():
    small = Shape(**{**asdict(SHAPE), "width": 48})
    told = estimate(WANTED, SHAPE, [run(small, tokens=TOKENS // 2, decode=1.0)], True)
    assert told.basis == "scaled" and told.seconds == pytest.approx(10 * 2**1.5 + 0.5 + 2.0, rel=0.15)


def test_a_cold_shape_pays_for_compiling_once_that_is_known():
    cold = estimate(WANTED, SHAPE, [run()], False)
    assert cold.compile_seconds is None and cold.seconds == 11.5
    known = estimate(WANTED, SHAPE, [run(), run(compile=6.0)], False)
    assert known.compile_seconds == 6.0 and known.seconds == 17.5


def test_a_model_that_is_not_kept_pays_for_loading_once_that_is_known():
    kept = estimate(WANTED, SHAPE, [run(load=0.0)], True, True)
    assert (kept.load_seconds, kept.seconds) == (0.0, 11.5)
    cold = estimate(WANTED, SHAPE, [run(load=0.0)], True, False)
    assert (cold.load_seconds, cold.seconds) == (None, 11.5)
    known = estimate(WANTED, SHAPE, [run(load=0.0), run(load=8.0)], True, False)
    assert (known.load_seconds, known.seconds) == (8.0, 19.5)


def test_runs_of_another_kind_of_device_say_nothing():
    runs = [replace(run(), device=device) for device in ("cpu", "4 TPU v6 lite", "")]
    assert [kept.device for kept in runs_on("cpu", runs)] == ["cpu", ""]
    assert runs_on("", runs) == runs
