"""Tests that the page, the library and the updates are as fast with 10,000 finished jobs as with few."""

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from backend.engine.job import new_job_id
from backend.engine.store import Store
from backend.schemas.events import Finished, Queued
from tests.backend.conftest import wait_for
from tests.clock import is_within
from tests.wan_ui.builders import a_job, a_request, a_result
from tests.wan_ui.conftest import _serving
from tests.wan_ui.visitor import Visitor
from wan_ui.gateway.access import OPERATOR_COOKIE, Access
from wan_ui.gateway.visitors import COOKIE, owner_name

JOBS = 10_000
TOKEN = "a" * 43
PAGE_SECONDS, SEARCH_SECONDS, TICK_SECONDS, SYSTEM_SECONDS = 1.0, 0.3, 0.1, 2.0
COLOURS = ("red", "green", "blue", "cyan", "orange")

pytestmark = pytest.mark.bench


def fill(data_dir: Path) -> None:
    """Write one visitor's jobs directly into SQLite, and create the folders that cleaning leaves of such jobs."""
    Store(data_dir / "jobs.sqlite3").close()
    database, owner, now = sqlite3.connect(data_dir / "jobs.sqlite3"), owner_name({COOKIE: TOKEN}), time.time()
    request, events = a_request().to_json(), [Queued(0).to_json(), Finished(a_result(a_job())).to_json()]
    for number in range(JOBS):
        folder = data_dir / "runs" / new_job_id()
        folder.mkdir(parents=True)
        (folder / "video.mp4").write_bytes(b"video")
        (folder / "request.json").write_bytes(b"{}")
        request |= {"prompt": f"a {COLOURS[number % 5]} square, number {number}", "seed": number}
        events[1]["result"] |= {"path": str(folder / "video.mp4"), "request": request}
        moment, ended = now - 60 * (JOBS - number), now - 60 * (JOBS - number) + 30
        columns = "id, owner, engine, request, state, created, started, ended, folder, place, has_video, cleaned"
        row = (folder.name, owner, "e", json.dumps(request), "finished", moment, moment, ended, str(folder), moment, 1, 1)
        database.execute(f"INSERT INTO jobs ({columns}) VALUES ({', '.join('?' * len(row))})", row)
        for sequence, event in zip((1, 60), events, strict=True):
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (folder.name, sequence, ended, json.dumps(event)))
    database.commit()
    database.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[str, Path, int]]:
    """Start a server with the jobs. Yield its address, data folder and process id."""
    data_dir = tmp_path_factory.mktemp("many")
    fill(data_dir)
    with _serving("fake", data_dir) as server:
        wait_for(lambda: httpx.get(f"{server.url}healthz").json()["worker"] == "ready")
        yield server.url, data_dir, server._process.pid


@pytest.fixture(scope="module", params=["visitor", "operator"])
def visitor(request, server) -> Visitor:
    """The visitor who owns all jobs, and the operator, who sees the jobs of all visitors."""
    url, data_dir, _ = server
    cookie = f"{COOKIE}={TOKEN}"
    return Visitor(
        url, cookie if request.param == "visitor" else f"{cookie}; {OPERATOR_COOKIE}={Access.load_or_create(data_dir)._cookie()}"
    )


def seconds(ask: Callable[[], object]) -> tuple[float, str]:
    """Return the shortest duration of three calls in seconds, and the last answer."""
    best, answer = float("inf"), ""
    for _ in range(3):
        began = time.monotonic()
        answer = str(ask())
        best = min(best, time.monotonic() - began)
    return best, answer


def test_the_page_opens(visitor):
    first, page = seconds(lambda: visitor.get("/"))
    opened, answer = seconds(lambda: visitor.call("open", {}))
    assert "gradio" in page and "number 9999" in answer
    assert is_within(first + opened, PAGE_SECONDS)


def test_the_library_is_searched(visitor):
    took, answer = seconds(lambda: visitor.call("search", {"library-search": "cyan NUMBER"}))
    assert "2000 videos" in answer and "number 9998" in answer and "number 9999" not in answer
    assert is_within(took, SEARCH_SECONDS)


def test_a_page_is_updated(visitor):
    took, answer = float("inf"), ""
    for _ in range(3):
        fresh = Visitor(visitor.url, visitor.cookie)  # a new page, for which everything is drawn
        began = time.monotonic()
        answer = str(fresh.call("tick", {}))
        took = min(took, time.monotonic() - began)
    assert "number 9999" in answer
    assert is_within(took, TICK_SECONDS)


def test_a_server_that_nobody_asks_rests(server):
    """Gradio's queue would wake the server a thousand times a second."""

    def wakings() -> int:
        counts = []
        for task in Path(f"/proc/{server[2]}/task").glob("*/status"):
            with contextlib.suppress(OSError):  # the thread has just ended
                counts.append(int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", task.read_text(), re.M)[1]))
        return sum(counts)

    before, began = wakings(), time.monotonic()
    time.sleep(2)
    assert is_within((wakings() - before) / (time.monotonic() - began), 200, "a second")


def test_the_system_view_counts_the_folders(visitor):
    ids = {component["id"]: component["props"].get("elem_id") for component in visitor.config["components"]}
    panels = [one for one in visitor.config["dependencies"] if str(one["api_name"]).startswith("render_panel")]
    (handler,) = (one["api_name"] for one in panels if "system" in map(ids.get, one["outputs"]))
    began = time.monotonic()
    answer = str(visitor.call(handler, {}))
    took = time.monotonic() - began
    assert "70 KB" in answer and "10000" in answer
    assert is_within(took, SYSTEM_SECONDS)
