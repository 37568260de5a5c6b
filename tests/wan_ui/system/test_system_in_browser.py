"""Tests of the operator's part of the System view, and of two servers on one data folder, in a real Chromium."""

import sqlite3
from pathlib import Path

import pytest

from tests.wan_ui.conftest import _serving
from tests.wan_ui.steps import generate, made, press, ready, rest, wait_until
from wan_ui.gateway.access import Access

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def intermediate_file(data_dir: Path, job: str) -> Path:
    """Make the job two hours old and return a file of the job that is no longer needed."""
    database = sqlite3.connect(data_dir / "jobs.sqlite3")
    database.execute("UPDATE jobs SET ended = ended - 7200, cleaned = 0 WHERE id = ?", (job,))
    database.commit()
    database.close()
    path = data_dir / "runs" / job / "stage1_embeddings.safetensors"
    path.write_bytes(bytes(12_000_000))
    return path


def test_the_operator_cleans_up_and_visitors_do_not(visit, studio, data_dir):
    visitor, operator = visit(), visit()
    path = intermediate_file(data_dir, made(visitor, "a red square"))
    visitor.keyboard.press("Alt+7")
    visitor.locator(".system", has_text="Intermediate files").wait_for()
    assert visitor.locator('[data-act="clean:now"]').count() == 0
    visitor.evaluate("studio.act('clean', 'now')")
    visitor.wait_for_timeout(500)
    assert path.exists()
    rest(operator)
    operator.goto(Access.load_or_create(data_dir).link(studio.url))
    ready(operator)
    operator.keyboard.press("Alt+7")
    operator.locator('[data-act="clean:now"]').click()
    operator.locator("#message .message.shown", has_text="Freed 12.0 MB: Intermediate files 12.0 MB.").wait_for()
    assert not path.exists()
    operator.locator('[data-act="clean:now"]').click()
    operator.locator("#message .message.shown", has_text="Nothing to remove.").wait_for()


@pytest.mark.slow  # tests/backend/engine/test_disasters.py tests the sentence
def test_stop_on_another_servers_video_says_who_can(visit, studio, close_gate, data_dir):
    page = visit()
    close_gate("a held square")
    generate(page, "a held square")
    wait_until(page, "document.querySelector('.stage').dataset.phase === 'denoising'")
    with _serving("fake", data_dir) as second:
        other = page.context.new_page()
        other.goto(Access.load_or_create(data_dir).link(second.url))
        ready(other)
        wait_until(other, "document.querySelector('.stage').dataset.phase === 'denoising'")
        for act in (other.locator("#stop").click, lambda: press(other, "a held square", "queue:cancel")):
            act()
            message = other.locator('#message .message.shown[data-bad="true"]', has_text="nother server")
            message.wait_for()
            message.locator(".close").click()
    page.locator("#stop").click()
    page.locator('.stage[data-phase="cancelled"]').wait_for()
