"""Tests of a video's other formats: the menu next to Download, and files that Chromium can play and show."""

import os
import shutil
import zipfile

import pytest
from PIL import Image

from tests.wan_ui.steps import made

pytestmark = pytest.mark.browser

PLAYED = """async url => {
  const video = document.createElement('video');
  video.muted = true;
  video.src = url;
  await video.play();
  return [video.videoWidth, video.videoHeight, video.duration];
}"""


def test_the_menu_gives_files_that_other_programs_open(visit, tmp_path):
    page = visit()
    made(page, "a square in other formats")
    menu = page.locator(".stage .menu:not(.upscale)")
    assert not menu.locator("a").first.is_visible()
    menu.locator("summary").click()
    names = {}
    for link in menu.locator("a").all():
        with page.expect_download() as download:
            link.click()
        name = download.value.suggested_filename
        names[name.rpartition(".")[2]] = shutil.copy(download.value.path(), tmp_path / name)
    assert set(names) == {"webm", "gif", "webp", "zip", "mp4"}
    for kind in ("gif", "webp"):
        with Image.open(names[kind]) as opened:
            assert opened.size == (96, 96) and opened.n_frames > 1
    with zipfile.ZipFile(names["zip"]) as archive:
        assert len(archive.namelist()) == 17
    address = menu.locator("a[href$=webm]").evaluate("link => link.href")
    width, height, seconds = page.evaluate(PLAYED, address)
    assert (width, height) == (96, 96) and seconds == pytest.approx(17 / 16, abs=0.15)


def test_long_work_shows_its_progress_and_can_be_stopped_and_a_refusal_is_read(visit):
    page, tasks, stopped = visit(), [{"id": "abc", "text": "Exporting · 42 %", "percent": 42}], []
    made(page, "a square that takes long")
    page.route("**/studio/tasks", lambda route: route.fulfill(json={"tasks": tasks, "stop": "Stop"}))

    def stop(route) -> None:
        stopped.append(route.request.url)
        tasks.clear()
        route.fulfill(json={})

    page.route("**/studio/tasks/*/stop", stop)
    words = "this work was stopped; start it again if needed"
    page.route("**/studio/export/*/gif", lambda route: route.fulfill(body=words, content_type="text/plain"))
    page.locator(".stage .menu:not(.upscale) summary").click()
    page.locator(".stage .menu a[href$=gif]").click()
    page.locator("#message .message.shown", has_text="was stopped").wait_for()
    row = page.locator("#tasks p", has_text="Exporting · 42 %")
    row.wait_for()
    assert row.get_by_role("progressbar").get_attribute("aria-valuenow") == "42"
    filled = row.locator(".bar i").evaluate("filled => filled.clientWidth / filled.parentElement.clientWidth")
    assert filled == pytest.approx(0.42, abs=0.01)  # one pixel of 120
    if folder := os.environ.get("STUDIO_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/tasks.png")
    row.locator("button", has_text="Stop").focus()
    tasks[:] = [{"id": "abc", "text": "Exporting · 43 %", "percent": 43}]
    row = page.locator("#tasks p", has_text="Exporting · 43 %")
    row.wait_for()
    assert row.locator("button").evaluate("button => button === document.activeElement"), "progress took the focus from Stop"
    row.locator("button", has_text="Stop").click()
    row.wait_for(state="detached")
    assert [url.rpartition("/studio/")[2] for url in stopped] == ["tasks/abc/stop"]
