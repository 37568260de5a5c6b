"""Errors speak on one line."""

from backend.errors import RequestError


def test_the_parts_become_one_line():
    error = RequestError("num_frames=80", "must be 4n+1", "nearest: 77 or 81")
    assert str(error) == "num_frames=80 must be 4n+1; nearest: 77 or 81"
    assert error.cause == "num_frames=80 must be 4n+1"


def test_line_breaks_do_not_survive():
    assert str(RequestError("a\nb", "c  d", "\ne")) == "a b c d; e"


def test_parts_may_be_left_out():
    assert str(RequestError("It broke")) == "It broke"
