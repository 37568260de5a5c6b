"""Tests of projects in a real Chromium: create, fill, find and export them, and refuse other visitors."""

import json
import urllib.request

import pytest

from tests.wan_ui.steps import made, ready, rest, wait_until
from tests.wan_ui.visitor import Visitor

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def choose(page, name: str, words: str) -> None:
    page.locator(f"#library-{name} input").click()
    page.locator(f'li[role=option][aria-label="{words}"]').click()


def shown(page, *prompts: str) -> None:
    """Wait until the library shows videos with exactly these prompts."""
    wait_until(page, "wanted => JSON.stringify([...document.querySelectorAll('#library-grid li .name')].map(p => p.textContent)) === wanted",
          json.dumps(list(prompts), separators=(",", ":"), ensure_ascii=False))  # fmt: skip


def test_a_video_goes_into_a_project_is_moved_found_and_taken_along(visit, studio, tmp_path):
    page = visit()
    made(page, "a red square")
    page.locator('#views [data-view="library"]').click()
    page.locator("#projects summary").click()
    page.locator("#project-name").fill("Night film")
    page.locator('[data-act="project:create"]').click()
    page.locator("#projects li[data-current=true]", has_text="Night film · 0").wait_for()
    page.keyboard.press("Escape")
    page.locator('#views [data-view="create"]').click()
    page.locator(".goes-into", has_text="New videos join project Night film.").wait_for()
    made(page, "a blue circle")
    page.locator('.goes-into [data-act="project:leave"]').click()
    page.locator(".goes-into").wait_for(state="detached")
    page.locator('#views [data-view="library"]').click()
    choose(page, "project", "Night film")
    shown(page, "a blue circle")
    choose(page, "project", "In no project")
    shown(page, "a red square")
    page.locator("#library-grid li").click()
    page.locator(".place-of select").select_option("Night film")
    page.locator(".place-of input").fill("best night")
    page.locator(".place-of input").blur()
    choose(page, "project", "Night film")
    shown(page, "a blue circle", "a red square")
    choose(page, "order", "Oldest")
    shown(page, "a red square", "a blue circle")
    page.locator("#library-search textarea, #library-search input").fill("#best")
    shown(page, "a red square")
    page.locator("#library-search textarea, #library-search input").fill("")
    page.locator("#projects summary").click()
    link = page.locator("#projects li a[download]")
    with page.expect_download() as downloaded:
        link.click()
    file = tmp_path / downloaded.value.suggested_filename
    downloaded.value.save_as(file)
    assert file.name == "Night film.zip"
    stranger = urllib.request.Request(
        f"{studio.url}/{link.get_attribute('href')}", headers={"cookie": f"studio_visitor={'s' * 43}"}
    )
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(stranger)
    other = visit()
    other.locator('#views [data-view="library"]').click()
    other.locator("#projects summary").click()
    other.set_input_files("#project-file", file)
    other.locator("#message .message.shown", has_text="Imported 2 videos into Night film.").wait_for()
    shown(other, "a blue circle", "a red square")
    (tmp_path / "bad.zip").write_bytes(b"PK no project")
    other.set_input_files("#project-file", tmp_path / "bad.zip")
    other.locator("#message .message.shown", has_text="must be a project that this studio has exported").wait_for()
    (tmp_path / "large.zip").write_bytes(bytes(64_000_000))
    other.set_input_files("#project-file", tmp_path / "large.zip")
    other.locator("#message .message.shown", has_text="A project may have at most 60 MB").wait_for()


def test_the_menu_keeps_what_is_typed_when_it_is_drawn_again_and_imports_by_keyboard(visit, studio):
    page = visit()
    page.locator('#views [data-view="library"]').click()
    page.locator("#projects summary").click()
    page.locator("#project-name").type("Night fi")
    cookie = next(f"{one['name']}={one['value']}" for one in page.context.cookies() if one["name"] == "studio_visitor")
    Visitor(studio.url, cookie).call("act_6", {}, {"what": "create", "job": "Another tab's"})
    page.locator("#projects li", has_text="Another tab's").wait_for()
    assert page.locator("#project-name").input_value() == "Night fi"
    page.keyboard.type("lm")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "project-file"
    page.locator('[data-act="project:create"]').click()
    page.locator("#projects li", has_text="Night film").wait_for()
    wait_until(page, "document.querySelector('#project-name').value === ''")


def test_a_strangers_acts_change_nothing(visit, studio):
    page = visit()
    job = made(page, "a secret square")
    page.locator('#views [data-view="library"]').click()
    page.locator("#projects summary").click()
    page.locator("#project-name").fill("Mine")
    page.locator('[data-act="project:create"]').click()
    mine = page.locator("#projects li", has_text="Mine")
    project = mine.locator("button").first.get_attribute("data-value")
    stranger = Visitor(studio.url)
    assert "Theirs · 0" in json.dumps(stranger.call("act_6", {}, {"what": "create", "job": "Theirs"}), ensure_ascii=False)
    for what in ("rename", "archive", "restore", "delete", "use", "move", "tag", "import"):
        answer = json.dumps(stranger.call("act_6", {}, {"what": what, "job": job, "value": project}), ensure_ascii=False)
        assert "Theirs" in answer and "Mine" not in answer and "secret" not in answer, what
    rest(page)
    page.reload()
    ready(page)
    page.locator('#views [data-view="library"]').click()
    page.locator("#projects summary").click()
    page.locator("#projects li", has_text="Mine · 0").wait_for()
