"""Files dropped on the page, in a real Chromium."""

import shutil
from pathlib import Path

import pytest

from tests.wan_ui.steps import made, wait_until

pytestmark = pytest.mark.browser


def drop(page, path: Path) -> None:
    """Drop a file from the desktop onto the middle of the page."""
    import base64

    page.evaluate(
        """([name, data]) => {
      const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0)), transfer = new DataTransfer();
      const kind = name.endsWith('.mp4') ? 'video/mp4' : name.endsWith('.png') ? 'image/png' : 'text/plain';
      transfer.items.add(new File([bytes], name, {type: kind}));
      const target = document.querySelector('#stage');
      for (const kind of ['dragover', 'drop'])
        target.dispatchEvent(new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }""",
        [path.name, base64.b64encode(path.read_bytes()).decode()],
    )


def test_a_dropped_video_loads_its_settings(visit, tmp_path):
    page, other = visit(), visit()
    page.locator("#resolution input").click()
    page.get_by_role("option", name="128 × 96").click()
    made(page, "a striped zebra", 3)
    seed = page.locator("#seed input").input_value()
    with page.expect_download() as download:
        page.locator("#download").click()
    shutil.copy(download.value.path(), tmp_path / "mine.mp4")
    drop(other, tmp_path / "mine.mp4")
    wait_until(other, "document.querySelector('#prompt textarea')?.value === 'a striped zebra'")
    assert other.locator("#seed input").input_value() == seed and not other.locator("#seed-random input").is_checked()
    assert other.locator("#steps input[type=number]").input_value() == "3"
    assert "128" in other.locator("#resolution input").input_value()
    other.locator("#message [data-act]", has_text="Use a new seed").click()
    wait_until(other, "document.querySelector('#seed-random input').checked")
    (tmp_path / "notes.mp4").write_text("no video")
    drop(other, tmp_path / "notes.mp4")
    other.locator('#message .message.shown[data-bad="true"]').wait_for()
    assert "must be an mp4 video" in other.locator("#message").inner_text()


def test_a_dropped_picture_becomes_the_first_frame(visit, picture):
    page = visit()
    drop(page, picture)
    page.locator("#crop-preview img").wait_for()
    assert page.get_by_role("tab", name="Image to video").get_attribute("aria-selected") == "true"
    before = page.locator("#crop-preview img").get_attribute("src")
    page.locator("#pad").click()
    wait_until(page, "before => document.querySelector('#crop-preview img').src !== before", before)
