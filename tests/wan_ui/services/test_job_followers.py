import asyncio
import threading

import pytest

from backend.errors import StudioError
from backend.schemas import events
from tests.wan_ui.builders import FakeEngine, a_job, a_result
from wan_ui.components.progress import StageView
from wan_ui.services import job_followers
from wan_ui.services.job_followers import add_queue_position, follow_job


def views(engine) -> list[StageView]:
    async def collect():
        return [view async for view in follow_job(engine, "job-1")]

    return asyncio.run(collect())


def test_a_follower_ends_with_the_final_event():
    job = a_job()
    seen = views(FakeEngine([job], [events.Queued(0), events.Step(1, 1, 1, 0, None), events.Finished(a_result(job))]))
    assert seen[-1].phase == "finished"


def test_events_that_arrive_together_make_one_view():
    steps = [events.Step(index, 200, 0.01, 1, None) for index in range(1, 201)]
    assert len(views(FakeEngine([a_job()], [*steps, events.Cancelled(None)]))) < 20


def test_an_error_of_the_engine_is_shown_not_swallowed():
    class Broken(FakeEngine):
        def follow(self, job_id, after=0):
            raise StudioError("the store is gone", fix="start the studio again")

    assert (views(Broken([a_job()]))[-1].phase, views(Broken([a_job()]))[-1].cause) == ("failed", "the store is gone")


@pytest.mark.bench
def test_silence_still_gives_a_view_so_that_a_closed_page_is_noticed(monkeypatch):
    monkeypatch.setattr(job_followers, "HEARTBEAT_SECONDS", 0.05)

    class Slow(FakeEngine):
        def follow(self, job_id, after=0):
            import time

            time.sleep(0.5)
            yield 1, events.Cancelled(None)

    assert len(views(Slow([a_job()], position=3))) > 3


def test_the_place_is_the_engines_and_a_job_that_left_the_queue_is_starting():
    assert add_queue_position(StageView(phase="queued"), FakeEngine([], position=2), "x").ahead == 2
    assert add_queue_position(StageView(phase="queued"), FakeEngine([]), "x").phase == "starting"
    assert add_queue_position(StageView(phase="denoising"), FakeEngine([], position=2), "x").phase == "denoising"


def test_many_followers_of_a_job_share_one_thread_and_see_the_same():
    job, go = a_job(), threading.Event()

    class Slow(FakeEngine):
        def follow(self, job_id, after=0):
            yield 1, events.Step(1, 2, 1, 0, None)
            go.wait(60)
            yield 2, events.Finished(a_result(job))

    async def crowd(engine):
        async def one():
            return [view async for view in follow_job(engine, "job-1")]

        tasks = [asyncio.create_task(one()) for _ in range(300)]
        await asyncio.sleep(0.3)
        late = asyncio.create_task(one())
        threads = [thread for thread in threading.enumerate() if thread.name == "follow-job-1"]
        go.set()
        return len(threads), await asyncio.gather(*tasks, late)

    threads, seen = asyncio.run(crowd(Slow([job], position=0)))
    assert threads == 1 and {views[-1].phase for views in seen} == {"finished"}


def test_a_follower_that_left_gets_nothing_more_and_the_job_can_be_followed_again():
    job = a_job()
    engine = FakeEngine([job], [events.Step(1, 1, 1, 0, None), events.Finished(a_result(job))])

    async def leave():
        async for view in follow_job(engine, "job-1"):
            return view

    asyncio.run(leave())
    assert views(engine)[-1].phase == "finished"
