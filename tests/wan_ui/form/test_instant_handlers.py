"""Tests of the handler of instant drafts over plain HTTP: other visitors and pages of other origins reach no draft."""

import base64
import html
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.backend.conftest import wait_for
from tests.wan_ui.visitor import Visitor
from wan_ui.gateway.visitors import COOKIE


@pytest.fixture(scope="module")
def url(own_studio) -> str:
    wait_for(lambda: httpx.get(f"{own_studio.url}healthz").json()["worker"] == "ready")
    return own_studio.url


class Typist(Visitor):
    """A visitor who calls the handler of instant drafts. `name` is a letter, which determines the visitor's cookie."""

    def __init__(self, url: str, name: str):
        super().__init__(url, f"{COOKIE}={name * 43}")
        results = {one["id"] for one in self.config["components"] if one["props"].get("elem_id") == "instant-result"}
        [self.handler] = [one["api_name"] for one in self.config["dependencies"] if results & set(one["outputs"])]

    def ask(self, what: str, prompt: str = "", number: int = 1, **given: Any) -> dict[str, Any]:
        """Return the handler's answer to the page's script, {} without one."""
        result, _ = self.call(self.handler, {"prompt": prompt} | given, {"what": what, "value": str(number)})
        found = re.search('data-answer="(.*?)"', json.dumps(result).replace('\\"', '"'))
        return json.loads(html.unescape(found[1])) if found else {}


def picture_size(answer: dict[str, Any]) -> tuple[int, int]:
    with Image.open(io.BytesIO(base64.b64decode(answer["picture"]))) as image:
        return image.size


def test_another_visitor_neither_sees_nor_stops_a_draft(url, close_gate):
    gate, ann, bob, eve = close_gate("a held square", "draft 2"), Typist(url, "a"), Typist(url, "b"), Typist(url, "e")
    eve.session = ann.session  # the page's session is no right: the cookie counts
    with ThreadPoolExecutor() as pool:
        held = pool.submit(ann.ask, "draft", "a held square", 7)
        gate.wait()
        assert [one.ask(what) for one in (bob, eve) for what in ("stop", "unknown")] == [{}] * 4
        other = pool.submit(eve.ask, "draft", "a blue square", 8, resolution="128x96")
        gate.open()
        mine, theirs = held.result(), other.result()
    assert (mine["number"], mine["prompt"], mine["isWaiting"]) == (7, "a held square", False)
    assert (theirs["number"], theirs["prompt"]) == (8, "a blue square")
    assert [picture_size(answer) for answer in (mine, theirs)] == [(96, 96), (128, 96)]


def test_a_page_of_another_origin_neither_requests_nor_stops_a_draft(url, close_gate):
    gate, ann = close_gate("a held square", "draft 2"), Typist(url, "a")
    with ThreadPoolExecutor() as pool:
        held = pool.submit(ann.ask, "draft", "a held square")
        gate.wait()
        for origin in ("https://evil.example", "null", "http://localhost:7860"):
            for what in ("stop", "draft"):
                asked = {"data": [], "session_hash": ann.session, "event_data": {"what": what, "value": "2"}}
                function = next(one["id"] for one in ann.config["dependencies"] if one["api_name"] == ann.handler)
                headers = {"origin": origin, "cookie": ann.cookie}
                answer = httpx.post(f"{url}gradio_api/run/predict", json=asked | {"fn_index": function}, headers=headers)
                assert answer.status_code == 403 and "data" not in answer.json()
        gate.open()
        assert held.result()["picture"]


def test_the_visitor_stops_the_own_draft(url, close_gate):
    """The same requests that other visitors may not send with effect."""
    gate, ann = close_gate("a held square", "draft 2"), Typist(url, "a")
    with ThreadPoolExecutor() as pool:
        held = pool.submit(ann.ask, "draft", "a held square")
        gate.wait()
        assert ann.ask("stop") == {}
        answer = held.result()  # while the gate is closed
    assert (answer["picture"], answer["isWaiting"]) == ("", True)


def test_two_pages_of_one_visitor_do_not_stop_each_others_drafts_for_ever(url, close_gate):
    gate, first, second = close_gate("a held square", "draft 2"), Typist(url, "a"), Typist(url, "a")
    with ThreadPoolExecutor() as pool:
        held = pool.submit(first.ask, "draft", "a held square", 7)
        gate.wait()
        newer = second.ask("draft", "a blue square", 1)
        older = held.result()  # while the gate is closed
    assert newer["picture"] and (older["number"], older["picture"], older["isWaiting"]) == (7, "", False)


def test_a_draft_opens_only_uploads(url, picture):
    ann = Typist(url, "a")
    ann.call("choose_1", {})  # image to video
    uploaded = ann.upload(picture)
    paths = [str(picture), "/nothing.png", "/etc", "/etc/passwd", f"{uploaded}/../.."]
    given = {"resolution": "96x96"}
    answers = [ann.ask("draft", "a square", **given | {"input-image": {"path": path}}) for path in paths]
    assert answers == [answers[0]] * len(paths) and not answers[0]["picture"] and not answers[0]["isWaiting"]
    assert ann.ask("draft", "a square", **given | {"input-image": {"path": uploaded}})["picture"]


def test_a_failed_draft_states_the_reason_without_folders_of_the_server(url):
    ann = Typist(url, "a")
    result, _ = ann.call(ann.handler, {"prompt": "missing"}, {"what": "draft", "value": "1"})
    assert "No such file or directory" in json.dumps(result) and "config.json" in json.dumps(result)
    assert "/srv" not in json.dumps(result)
