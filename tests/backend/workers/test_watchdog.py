"""A worker counts as hung after its stage's own limit. A step's limit follows from the steps before it."""

import pytest

from backend.schemas.events import Compiling, Decoding, Encoding, Loading, Step, Upscaling
from backend.workers.watchdog import SILENCE_SECONDS, STOP_SECONDS, Watchdog


def patience(state="busy", *events, every=1.0) -> tuple[Watchdog, float]:
    """Return a watchdog that received these events, and the time of the last event."""
    one, now = Watchdog(alive=0.0, progress=0.0), 0.0
    one.count_state(state, now)
    for event in events:
        now += every
        one.count_event(event, now)
    return one, now


def complaint_after(seconds: float, one: Watchdog, now: float) -> str:
    one.count_heartbeat(now + seconds)  # the process is alive, but its work does not advance
    return one.find_hang(now + seconds)


@pytest.mark.parametrize(
    ("state", "events", "limit"),
    [
        ("starting", [], 600),
        ("loading", [Loading(1, 2, "the model")], 600),
        ("warming", [Compiling("the decoder")], 3600),
        ("busy", [Compiling("the decoder")], 3600),
        ("busy", [Encoding()], 600),
        ("busy", [Encoding(), Step(1, 9, 1.0, 8.0)], 1800),
        ("busy", [Step(1, 9, 1.0, 8.0), Step(2, 9, 1.0, 7.0)], 30),
        ("busy", [Decoding(1, 9), Decoding(5, 9)], 30),
        ("busy", [Decoding(9, 9), Upscaling(0, 9)], 1800),
        ("busy", [Upscaling(1, 9), Upscaling(5, 9)], 30),
    ],
)
def test_each_stage_has_its_limit(state, events, limit):
    one, now = patience(state, *events)
    assert complaint_after(limit - 1, one, now) == ""
    assert f"at most {limit} s were expected" in complaint_after(limit + 1, one, now)


@pytest.mark.parametrize("events", [[], [Encoding()]])
def test_a_stopped_video_that_has_nothing_to_keep_is_given_little_time(events):
    one, now = patience("busy", *events)
    one.count_stop_request(now + 100)
    one.count_stop_request(now + 110)  # the visitor presses Stop again
    assert complaint_after(100 + STOP_SECONDS - 1, one, now) == ""
    assert "did not stop its video" in complaint_after(100 + STOP_SECONDS + 1, one, now)


@pytest.mark.parametrize("event", [Compiling("the decoder"), Step(1, 9, 1.0, 8.0)])
def test_a_stopped_video_may_end_its_program_and_decode_what_was_done(event):
    one, now = patience("busy", event)
    one.count_stop_request(now)
    assert complaint_after(STOP_SECONDS + 1, one, now) == ""


def test_the_next_video_is_not_stopped():
    one, now = patience("busy", Encoding())
    one.count_stop_request(now)
    one.count_state("ready", now)
    one.count_state("busy", now)
    assert complaint_after(STOP_SECONDS + 1, one, now) == ""


def test_slow_steps_are_given_more_time():
    one, now = patience("busy", *(Step(index, 9, 60.0, 8.0) for index in (1, 2, 3)), every=60.0)
    assert complaint_after(1199, one, now) == "" and complaint_after(1201, one, now)


def test_an_idle_worker_need_not_report_but_must_live():
    one, now = patience("ready")
    assert complaint_after(1e6, one, now) == ""
    assert "no sign of life" in one.find_hang(1e6 + SILENCE_SECONDS + 1)


def test_a_process_that_stands_still_is_noticed_in_every_stage():
    for state in ("starting", "loading", "warming", "ready", "busy"):
        one, now = patience(state)
        assert one.find_hang(now + SILENCE_SECONDS - 1) == "" and "no sign of life" in one.find_hang(now + SILENCE_SECONDS + 1)


def test_a_pause_of_our_own_is_excused():
    one, _ = patience("busy", Encoding())
    one.restart_timers(1e6)
    assert one.find_hang(1e6 + 1) == ""
