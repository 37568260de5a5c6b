"""Errors have one line."""

import pytest

from backend.errors import RequestError, bytes_needed


def test_the_parts_become_one_line():
    error = RequestError("num_frames=80", "must be 4n+1", "nearest: 77 or 81")
    assert str(error) == "num_frames=80 must be 4n+1; nearest: 77 or 81"
    assert error.cause == "num_frames=80 must be 4n+1"


def test_line_breaks_do_not_survive():
    assert str(RequestError("a\nb", "c  d", "\ne")) == "a b c d; e"


def test_parts_may_be_left_out():
    assert str(RequestError("It broke")) == "It broke"


@pytest.mark.parametrize(
    ("said", "needed"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 45.50G of 31.25G hbm.", 48855252992),
        ("HLO temporaries (512.00M) exceeds available HBM", 2**29),
        ("INTERNAL: something else", None),
    ],
)
def test_the_compiler_says_how_much_memory_a_program_needs(said, needed):
    assert bytes_needed(RuntimeError(said)) == needed
