"""Tests that lists of videos read columns only. No list parses a stored request, also not in a store of an earlier version."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.engine.engine import Engine
from backend.engine.job import Job, RequestSummary, Selection, new_job_id
from backend.engine.store import Store
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from tests.backend.conftest import FAKE
from tests.backend.engine.test_database import make_older
from tests.wan_ui.builders import a_job, a_request, a_result
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.library.view import LibraryHandlers
from wan_ui.queue.queue_query import stamped_queue_html
from wan_ui.routes.changes import _render_parts
from wan_ui.routes.videos import Videos
from wan_ui.services.caller import Caller
from wan_ui.services.studio_context import StudioContext

VIDEOS, CUES = 30, 20_000
TOKEN = "a" * 43
COLUMNS = ("summary", "has_sound", "made_seconds")


def fill(data_dir: Path) -> None:
    """Fill a store of an earlier version with finished videos that have many cues."""
    data_dir.mkdir()
    store, owner = Store(data_dir / "jobs.sqlite3"), owner_name({COOKIE: TOKEN})
    cues = [{"block": 1}] * CUES
    figures = {"figures": [{"name": "anna", "image": 0}], "figure_images": ["/figure.png"]}
    request = GenerationRequest.from_stored(a_request().to_json() | {"cues": cues} | figures)
    for _ in range(VIDEOS):
        folder = data_dir / "runs" / new_job_id()
        folder.mkdir(parents=True)
        values = {"request": request, "summary": RequestSummary.from_request(request), "state": "queued", "created": time.time()}
        store.jobs.add(Job(id=folder.name, owner=owner, started=None, ended=None, folder=folder, **values), "e")
        store.events.append(folder.name, Finished(a_result(store.jobs.find(folder.name), total=4.2, has_sound=True)))
    store.close()
    make_older(data_dir / "jobs.sqlite3", jobs=COLUMNS)


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> Iterator[StudioContext]:
    data_dir = tmp_path_factory.mktemp("lists") / "data"
    fill(data_dir)
    engine = Engine(data_dir, pipeline=FAKE, start_worker=False)
    engine.projects.create(owner_name({COOKIE: TOKEN}), "film")
    yield StudioContext(engine=engine, access=Access.load_or_create(data_dir), can_run=engine.has_weights)
    engine.close()


@pytest.fixture
def caller(context) -> Caller:
    return context.identify_caller(
        SimpleNamespace(cookies={COOKIE: TOKEN}, session_hash="x", headers={"accept-language": "en"}, client=None)
    )


def library_grid(context: StudioContext, caller: Caller, **selection) -> str:
    panel = SimpleNamespace(selection=lambda values, caller: Selection(owner=caller.owner, **selection), chosen="chosen")
    return LibraryHandlers._grid_html(SimpleNamespace(context=context, panel=panel), {"chosen": ""}, caller)


def found(context: StudioContext, caller: Caller) -> str:
    asked = {"presets": ("wan-tiny",), "size": "small", "order": "largest", "words": ("red", "circle"), "has_characters": True}
    return library_grid(context, caller, **asked)


def videos_page(context: StudioContext, caller: Caller) -> str:
    page = Videos(context)._list_page({"limit": "100"}, caller)
    first = page["data"][0]
    assert len(page["data"]) == VIDEOS and (first["model"], first["seed"]) == ("wan-tiny", 7)
    assert (first["status"], first["size"], first["seconds"], first["progress"]) == ("completed", "96x96", "1", 100)
    return first["prompt"]


LISTS = ("library", "search", "queue", "changes", "videos", "prompts", "characters", "projects")


def read_list(name: str, context: StudioContext, caller: Caller) -> str:
    """Return the contents of the named list."""
    library = context.engine.library
    match name:
        case "library":
            return library_grid(context, caller)
        case "search":
            return found(context, caller)
        case "queue":
            return stamped_queue_html(context, caller)
        case "changes":
            return _render_parts(context, caller)[0]["queue"]
        case "videos":
            return videos_page(context, caller)
        case "prompts":
            return str(library.prompts(caller.owner, 10))
        case "characters":
            return str(library.characters(caller.owner, "", 10))
        case _:
            return str(context.engine.projects.list_for_owner(caller.owner))


@pytest.fixture
def parses(monkeypatch) -> list[str]:
    """Record the presets of the requests that are parsed."""
    parsed, parse = [], GenerationRequest.from_stored

    def count(data):
        parsed.append(data["preset"])
        return parse(data)

    monkeypatch.setattr(GenerationRequest, "from_stored", count)
    return parsed


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_heavy_videos_parses_no_request(context, caller, parses, name):
    shown = read_list(name, context, caller)
    assert {"characters": "/figure.png", "projects": "film"}.get(name, "a red circle") in shown
    assert parses == []


def test_a_store_of_an_earlier_version_is_filled(context, caller):
    listed = context.engine.library.videos(Selection(owner=caller.owner))
    assert len(listed) == VIDEOS
    assert listed[0].summary == RequestSummary.from_request(context.engine.jobs.find(listed[0].id).request)
    assert (listed[0].has_video, listed[0].made_seconds) == (True, 4.2)
    assert context.engine.library.with_sound([job.id for job in listed]) == {job.id for job in listed}
    assert "0:04" in stamped_queue_html(context, caller) or "4.2" in stamped_queue_html(context, caller)


def test_a_summary_is_short_and_differs_whenever_the_request_does():
    request = a_request()
    heavy = GenerationRequest.from_stored(request.to_json() | {"cues": [{"block": 1}] * CUES})
    assert len(str(RequestSummary.from_request(heavy))) < 1000
    assert RequestSummary.from_request(heavy).digest != RequestSummary.from_request(request).digest
    assert a_job(guidance=[2.0]).summary != a_job(guidance=[3.0]).summary
