"""Tests of access in a real Chromium: what each visitor sees, and what the server answers without a login."""

import json
import re
import urllib.error
import urllib.request

import pytest

from tests.wan_ui.steps import generate, made, ready, rest
from wan_ui.gateway.access import Access

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def test_visitors_are_apart_and_the_operator_sees_all(visit, studio, data_dir):
    one, two = visit(), visit()
    job = made(one, "a secret of one")
    for tab in (one, two):
        tab.keyboard.press("Alt+5")
    one.locator("#library-grid li", has_text="a secret of one").wait_for()
    assert "a secret of one" not in two.content()
    address = f"{studio.url}studio/media/{job}/video.mp4"
    assert one.request.get(address).status == 200 and two.request.get(address).status == 404
    assert two.request.get(address.replace("video.mp4", "poster.webp")).status == 404
    rest(two)  # a request that is open when the page is left causes an error in its console
    two.goto(f"{studio.url}?operator=wrong")
    ready(two)
    rest(two)
    assert two.request.get(address).status == 404
    two.goto(Access.load_or_create(data_dir).link(studio.url))
    assert "operator=" not in two.url
    ready(two)
    assert two.request.get(address).status == 200
    two.keyboard.press("Alt+5")
    two.locator("#library-grid li", has_text="a secret of one").click()
    two.locator("#library-detail").get_by_role("button", name="Open folder").click()
    two.get_by_text(re.compile(re.escape(str(data_dir / "runs" / job)))).wait_for()  # the folder opens, or its path is shown
    one.locator("#library-grid li", has_text="a secret of one").click()
    one.locator("#library-detail").get_by_role("button", name="Use settings").wait_for()
    assert one.get_by_role("button", name="Open folder").count() == 0
    one.evaluate("job => studio.act('queue', 'folder', {job})", job)
    one.wait_for_timeout(500)
    assert str(data_dir) not in one.content()
    two.keyboard.press("Alt+7")
    two.locator("#system", has_text="You are the operator").wait_for()
    one.keyboard.press("Alt+7")
    one.locator("#system", has_text="You see your own").wait_for()


def test_failures_name_no_folder(visit, data_dir):
    page = visit()
    generate(page, "die")
    page.locator('.stage[data-phase="failed"]').wait_for()
    assert str(data_dir) not in page.content() and "worker" in page.locator(".stage .veil").inner_text()


def test_metrics_ask_for_the_key_where_visitors_need_a_password(tmp_path):
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from backend.engine.engine import Engine
    from wan_ui.routes.metrics import metrics_route

    engine = Engine(tmp_path, pipeline="tests.fake_pipeline", start_worker=False)
    access = Access("key")
    client = TestClient(Starlette(routes=[metrics_route(engine, access, is_open=False)]))
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"authorization": "Bearer key"}).status_code == 200
    engine.close()


def test_a_foreign_address_is_refused(studio):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{studio.url}studio/compare/../../etc/passwd.mp4")


def test_watchers_are_answered(studio):
    with urllib.request.urlopen(f"{studio.url}healthz") as answer:
        assert json.load(answer)["worker"] in ("ready", "busy", "warming", "loading", "starting")
    with urllib.request.urlopen(f"{studio.url}metrics") as answer:
        assert re.search(r'^studio_jobs\{state="finished"\} \d+$', answer.read().decode(), re.MULTILINE)
