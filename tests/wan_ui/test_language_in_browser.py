"""Tests of the choice of the page's language in the header."""

import pytest

from tests.wan_ui.builders import CHINESE
from tests.wan_ui.steps import ready, rest, wait_until
from wan_ui.i18n.english import ENGLISH

pytestmark = pytest.mark.browser


def choose(page, key: str) -> None:
    """Choose a language by keyboard and wait for the new page."""
    rest(page)
    page.locator("#language").focus()
    with page.expect_navigation():
        page.keyboard.press(key)
    ready(page)


def reads(page, texts) -> None:
    wait_until(page, "text => document.querySelector('#generate').innerText.trim() === text", arg=texts.generate)
    wait_until(page, "text => document.querySelector('#title').innerText.includes(text)", arg=texts.view_library)
    wait_until(page, "text => document.querySelector('.stage .title').innerText.trim() === text", arg=texts.idle_title)
    wait_until(page, "text => document.querySelector('#queue').innerText.includes(text)", arg=texts.queue_title)
    assert page.locator("#language").input_value() == texts.language
    assert page.locator("#language option").all_inner_texts() == ["English", "中文"]
    page.locator("#generate").click()
    wait_until(page, "document.querySelector('#prompt-note .note') && !document.querySelector('#prompt-note .note').hidden")


def test_a_visitor_chooses_a_language_and_finds_it_again(visit, studio):
    page = visit()
    reads(page, ENGLISH)
    assert ENGLISH.not_found in page.request.get(f"{studio.url}studio/nothing").text()
    choose(page, "ArrowDown")
    reads(page, CHINESE)
    assert CHINESE.not_found in page.request.get(f"{studio.url}studio/nothing").text()
    again = page.context.new_page()
    again.goto(studio.url)
    ready(again)
    reads(again, CHINESE)
    choose(again, "ArrowUp")
    reads(again, ENGLISH)


def test_the_choice_counts_more_than_the_browser(chromium, studio):
    context = chromium.new_context(locale="zh-CN", viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(studio.url)
    ready(page)
    reads(page, CHINESE)
    choose(page, "ArrowUp")
    reads(page, ENGLISH)
    context.close()
