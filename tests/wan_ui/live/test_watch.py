"""Tests that live videos end if nobody watches them, and after their time if other jobs wait."""

from types import SimpleNamespace

import pytest

from wan_ui.live.routes import TURN_SECONDS, UNSEEN_SECONDS, LiveWatcher


def job(name: str, state: str = "running", is_open: bool = True) -> SimpleNamespace:
    return SimpleNamespace(id=name, state=state, summary=SimpleNamespace(is_open=is_open))


@pytest.fixture
def jobs() -> list[SimpleNamespace]:
    return [job("live")]


@pytest.fixture
def watch(jobs) -> LiveWatcher:
    """Return a watcher whose engine reports no changes, so that only the test's calls have effects."""
    return LiveWatcher(
        SimpleNamespace(
            library=SimpleNamespace(unended=lambda owner: jobs), event_log=SimpleNamespace(wait_for_change=lambda *_: None)
        )
    )


def test_a_video_that_nobody_watches_ends_after_fifteen_seconds(watch):
    assert watch._jobs_to_end(100.0) == [] == watch._jobs_to_end(100.0 + UNSEEN_SECONDS)
    assert watch._jobs_to_end(100.1 + UNSEEN_SECONDS) == ["live"]


def test_a_page_that_comes_back_in_time_keeps_it(watch):
    watch._jobs_to_end(100.0)
    with watch.keep_watched("live"):
        assert watch._jobs_to_end(100.0 + 10 * UNSEEN_SECONDS) == []


def test_its_turn_is_over_a_minute_after_others_began_to_wait(watch, jobs):
    with watch.keep_watched("live"):
        watch._jobs_to_end(100.0)
        assert watch.seconds_left("live") is None
        jobs.append(job("other", state="queued", is_open=False))
        assert watch._jobs_to_end(200.0) == [] == watch._jobs_to_end(200.0 + TURN_SECONDS)
        assert watch.seconds_left("live") is not None
        assert watch._jobs_to_end(200.1 + TURN_SECONDS) == ["live"]
        del jobs[1]
        assert watch._jobs_to_end(300.0) == [] and watch.seconds_left("live") is None


def test_other_videos_are_left_alone(watch, jobs):
    jobs[:] = [job("plain", is_open=False)]
    assert watch._jobs_to_end(100.0) == [] == watch._jobs_to_end(1000.0)
