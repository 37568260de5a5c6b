"""The storyboard's editor in a real Chromium: lines are added, moved and removed, made, and there again after a reload."""

import json

import pytest

from tests.wan_ui.steps import again, until

pytestmark = pytest.mark.browser


def lines(page) -> list[dict]:
    return json.loads(page.locator("#shots textarea").input_value() or "[]")


@pytest.mark.parametrize("width", [pytest.param(1440, marks=pytest.mark.slow), 390])
def test_shots_are_written_moved_removed_and_made(width, visit):
    page = visit(width=width, height=900)
    page.locator("#prompt textarea").fill("a red square")
    page.locator(".shots-switch").click()
    assert [line["prompt"] for line in lines(page)] == ["a red square", ""]
    assert not page.locator("#prompt").is_visible()
    rows = page.locator(".shots li")
    rows.nth(1).locator("textarea").fill("a second square")
    rows.nth(1).locator("[name=seconds]").fill("1")
    page.locator(".shots-add").click()
    rows.nth(2).locator("textarea").fill("a third square")
    rows.nth(2).locator("[name=seed]").fill("7")
    rows.nth(2).locator('[data-shot="up"]').click()
    rows.nth(0).locator('[data-shot="remove"]').click()
    assert lines(page) == [
        {"prompt": "a third square", "seconds": "", "seed": "7"},
        {"prompt": "a second square", "seconds": "1", "seed": ""},
    ]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.locator("#generate").click()
    until(page, "document.querySelector('.stage').dataset.phase === 'finished'")
    facts = page.locator(".stage .facts").inner_text()
    assert "Shots" in facts
    page = again(page)
    until(page, "document.querySelectorAll('.shots li').length === 2")
    assert [line["prompt"] for line in lines(page)] == ["a third square", "a second square"]
    page.locator(".shots-switch").click()
    assert lines(page) == [] and page.locator("#prompt").is_visible()


def test_a_line_without_words_is_said_beside_the_lines(visit):
    page = visit()
    page.locator(".shots-switch").click()
    page.locator("#generate").click()
    page.locator("#prompt-note .note:not([hidden])").wait_for()
    assert "Shot 1 has an empty prompt" in page.locator("#prompt-note").inner_text()
