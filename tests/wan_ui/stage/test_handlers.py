"""Tests of the stage's handlers without a page."""

from types import SimpleNamespace

import pytest

from backend.engine.engine import Engine
from tests.wan_ui.builders import a_request
from wan_ui.i18n.english import ENGLISH
from wan_ui.stage.handlers import StageHandlers

CALLER = SimpleNamespace(owner="visitor", texts=ENGLISH, uses_english=True)


@pytest.fixture
def engine(tmp_path):
    engine = Engine(tmp_path, "square", pipeline="tests.fake_pipeline", start_worker=False)
    yield engine
    engine.close()


def handlers(engine: Engine) -> StageHandlers:
    panel = SimpleNamespace(job_id="job_id", view="view")
    return StageHandlers(context=SimpleNamespace(engine=engine), form=None, panel=panel, message=None)


def test_a_page_that_opens_without_a_job_leaves_the_stage_to_a_video_that_was_queued_since(engine):
    """Gradio writes the slower answer last: here to the opening of the page, after the answer to a press of Generate."""
    assert handlers(engine).initial_updates(CALLER, {}, {}) == {}


def test_a_page_opens_with_the_visitors_job(engine):
    job = engine.submit(a_request(), owner="visitor")
    assert handlers(engine).initial_updates(CALLER, {}, {}) == {"job_id": job.id}


@pytest.mark.parametrize("known", ["shown", "placed", "followed"])
def test_a_video_keeps_the_stage_until_it_has_ended(engine, monkeypatch, known):
    """The page reports the video, or a press of Generate has just placed it there, or the page already follows it."""
    first, second = (engine.submit(a_request(), owner="visitor") for _ in range(2))
    jobs, stage = {job.id: job for job in (first, second)}, handlers(engine)
    stage.context.find_job = lambda job_id, caller: jobs.get(job_id)
    monkeypatch.setattr(StageHandlers, "draw", lambda *_: "drawn")
    if known != "shown":
        getattr(stage, known)["page"] = first.id
    shown = first.id if known == "shown" else None
    assert stage._show_on_stage(shown, second, CALLER, "page") == {}
    assert stage._show_on_stage(None, second, CALLER, "another page")["job_id"] == second.id
