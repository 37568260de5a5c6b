"""The speed of a download."""

from backend.checkpoints.speed import Speed


def test_speed_counts_from_what_was_there_at_first():
    now = iter([0.0, 2.0, 4.0])
    speed = Speed(clock=lambda: next(now))
    assert [speed(done) for done in (10, 30, 110)] == [0.0, 10.0, 25.0]
