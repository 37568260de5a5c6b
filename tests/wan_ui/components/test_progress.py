import pytest

from backend.schemas import events
from tests.wan_ui.builders import a_job, a_result
from wan_ui.components.progress import StageView, advance_view, format_duration


def view_after(*happened) -> StageView:
    view = StageView()
    for event in happened:
        view = advance_view(view, event)
    return view


def test_a_step_shows_its_numbers_and_keeps_the_last_preview():
    view = view_after(events.Step(1, 20, 0.5, 9.5, "previews/1.png"), events.Step(2, 20, 0.4, 7.2, None))
    assert (view.phase, view.index, view.total) == ("denoising", 2, 20)
    assert (view.seconds_per_step, view.seconds_left) == (0.4, 7.2)
    assert view.preview == "previews/1.png"


def test_the_bar_never_goes_back_and_ends_full():
    job = a_job()
    happened = [
        events.Queued(1),
        events.Encoding(),
        *(events.Step(index, 4, 1, 1, None) for index in range(1, 5)),
        events.Decoding(4, 33),
        events.Decoding(33, 33),
        events.Upscaling(0, 33),
        events.Upscaling(33, 33),
        events.Finished(a_result(job)),
    ]
    fractions = [view_after(*happened[: count + 1]).fraction for count in range(len(happened))]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0 and all(fraction < 1 for fraction in fractions[:-4])


def test_a_failure_keeps_cause_and_fix():
    view = view_after(events.Encoding(), events.Failed("out of memory", "choose a smaller size"))
    assert (view.phase, view.cause, view.fix) == ("failed", "out of memory", "choose a smaller size")
    assert not view.is_active


def test_stopping_may_leave_a_video():
    result = a_result(a_job())
    assert view_after(events.Cancelled(result)).result is result
    assert view_after(events.Cancelled(None)).result is None


@pytest.mark.parametrize(
    "event",
    [
        events.Queued(0),
        events.Loading(1, 2, "x"),
        events.Compiling("x"),
        events.Encoding(),
        events.Step(1, 2, 1, 1, None),
        events.Decoding(1, 2),
        events.Upscaling(1, 2, 3.0),
    ],
)
def test_every_event_before_the_last_is_active(event):
    assert view_after(event).is_active


def test_zero_steps_or_frames_do_not_divide_by_zero():
    assert view_after(events.Step(0, 0, 0, 0, None), events.Decoding(0, 0)).phase == "decoding"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.314, "0.31 s"), (4.24, "4.2 s"), (48.3, "48 s"), (59.7, "1 min"), (200, "3 min 20 s"), (3900, "1 h 5 min")],
)
def test_durations_are_written_as_people_write_them(seconds, words):
    assert format_duration(seconds) == words
