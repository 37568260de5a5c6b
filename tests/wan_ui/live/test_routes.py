"""Tests of Live's routes: an error is one sentence and leaves no files, and a video belongs to its visitor."""

import json
import time
from pathlib import Path

import pytest
from gradio.utils import get_upload_folder
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.engine.engine import Engine
from backend.schemas.events import Block
from backend.schemas.live import frame_name
from tests.fake_pipeline import square_in
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE
from wan_ui.live.routes import live_routes
from wan_ui.services.studio_context import StudioContext

PROMPT = {"preset": "wan-live-tiny", "prompt": "a red square"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("live"), pipeline="tests.fake_pipeline")
    yield engine
    engine.close()


@pytest.fixture
def visitor(engine):
    """Return a function that creates the visitor of a letter."""
    context = StudioContext(engine=engine, access=Access("key"), can_run=engine.has_weights)
    app = Starlette(routes=[*live_routes(context)])
    return lambda letter="A": TestClient(app, cookies={COOKIE: letter * 43})


@pytest.fixture
def uploaded(tmp_path) -> str:
    """Return the path of an uploaded file that is not an image."""
    folder = Path(get_upload_folder()) / "abc"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.png").write_text("no picture")
    return str(folder / "notes.png")


def refused(client: TestClient, path: str, body: object) -> str:
    """Return the error, one sentence, that answers a request."""
    answer = client.post(path, json=body)
    assert set(answer.json()) == {"error"}
    return answer.json()["error"]


def jobs(engine) -> int:
    return sum(engine.library.counts().values())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (PROMPT | {"prompt": ""}, "Prompt is empty"),
        (PROMPT | {"prompt": 5}, "Prompt is empty"),
        (PROMPT | {"preset": "wan-tiny"}, "is not a live preset"),
        (PROMPT | {"preset": "../../etc/passwd"}, "must be one of"),
        (PROMPT | {"preset": ["wan-live-tiny"]}, "must be one of"),
        (PROMPT | {"image": "/etc/passwd"}, "must be an uploaded file"),
        (PROMPT | {"image": ["a"]}, "must be an uploaded file"),
        ([1], "must be one of"),
    ],
)
def test_what_cannot_begin_is_refused_with_one_sentence_and_leaves_nothing(engine, visitor, body, words):
    before = jobs(engine)
    told = refused(visitor(), "/studio/live", body)
    assert words in told and told.endswith((".", "?")) and "\n" not in told and len(told) < 2500
    assert jobs(engine) == before


def test_a_picture_that_is_none_is_refused_and_leaves_nothing(engine, visitor, uploaded):
    before = jobs(engine)
    assert "notes.png" in refused(visitor(), "/studio/live", PROMPT | {"image": uploaded})
    assert jobs(engine) == before


def test_a_video_is_steered_by_its_own_visitor_alone_and_hears_nothing_after_its_end(engine, visitor):
    anna, ben = visitor("A"), visitor("B")
    job = anna.post("/studio/live", json=PROMPT).json()["job"]
    while engine.jobs.find(job).state == "queued":
        time.sleep(0.02)
    for path in ("say", "stop"):
        answer = ben.post(f"/studio/live/{job}/{path}", json={"action": "left"})
        assert (answer.status_code, answer.json()) == (404, {"error": "There is no such video."})
    assert ben.get(f"/studio/live/{job}/frames").status_code == 404
    while not isinstance(engine.events.last(job), Block):
        time.sleep(0.02)
    assert anna.post(f"/studio/live/{job}/say", json={"action": "left"}).json() == {}
    while square_in(engine.jobs.find(job).folder / frame_name(engine.events.last(job).end - 1))[0] >= 48:
        time.sleep(0.02)
    assert "left, right" in refused(anna, f"/studio/live/{job}/say", {"action": "jump"})
    assert "is empty" in refused(anna, f"/studio/live/{job}/say", {"prompt": " "})
    assert anna.post(f"/studio/live/{job}/stop").json() == {}
    while not engine.jobs.find(job).has_ended:
        time.sleep(0.02)
    assert "must be a running live video" in refused(anna, f"/studio/live/{job}/say", {"prompt": "a blue square"}).lower()
    assert engine.jobs.find(job).request.cues[-1].action == "left"
    packets = anna.get(f"/studio/live/{job}/frames").content  # the page reopens a stream that broke off just before its end
    how = json.loads(packets[packets.rindex(b'{"phase"') :])
    assert how["has_ended"] and how["phase"] == "finished" and how["words"] and not how["error"]
    assert ben.get(f"/studio/live/{job}/frames").status_code == 404
