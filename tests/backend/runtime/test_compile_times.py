"""Predict the duration of compiling from earlier durations."""

from pathlib import Path

import pytest

from backend.runtime.compile_times import CompileTimes, Forecast

KNOWN = {"text": 30.0, "step": 60.0, "decoder": 90.0}


def left(kinds: list[str], known: dict[str, float], *taken: float) -> float:
    return Forecast(kinds, known, measured=list(taken)).seconds_left


def test_before_the_first_program_only_what_is_known_counts():
    assert left(["text", "step", "decoder"], KNOWN) == 180
    assert left(["text", "step", "decoder"], {}) == 0
    assert left([], KNOWN) == 0


def test_a_program_that_is_not_known_is_taken_for_the_others_mean():
    assert left(["text", "other"], KNOWN) == 60
    assert left(["a", "b", "c"], {}, 10.0) == 20
    assert left(["a", "b", "c"], {}, 10.0, 20.0) == 15


@pytest.mark.parametrize(("taken", "expected"), [(30.0, 150.0), (60.0, 300.0), (3.0, 15.0)])
def test_a_machine_that_is_slower_or_has_them_stored_corrects_the_rest(taken, expected):
    assert left(["text", "step", "decoder"], KNOWN, taken) == pytest.approx(expected)


def test_at_the_end_nothing_is_left():
    assert left(["text", "step"], KNOWN, 30.0, 60.0) == 0


def test_the_most_seconds_are_written_down_and_survive(tmp_path):
    path = tmp_path / "cache" / "seconds.json"
    times = CompileTimes(path)
    times.record({"step": 61.26, "tiny": 0.04})
    times.record({"step": 0.4, "text": 30.0})  # the second time the step came from a cache
    assert CompileTimes(path).read() == {"step": 61.3, "text": 30.0}


@pytest.mark.parametrize("content", ["", "[]", '{"step": "long"', '{"step": "long"}'])
def test_a_file_that_was_spoiled_is_as_none(tmp_path, content):
    path = tmp_path / "seconds.json"
    path.write_text(content)
    assert CompileTimes(path).read() == {}
    CompileTimes(path).record({"step": 5.0})
    assert CompileTimes(path).read() == {"step": 5.0}


def test_a_folder_that_cannot_be_written_does_no_harm():
    CompileTimes(Path("/proc/nowhere/seconds.json")).record({"step": 5.0})
