"""The library and the player in a real Chromium."""

import re

import pytest

from tests.wan_ui.steps import made, wait_until

pytestmark = pytest.mark.browser


def test_the_library_finds_plays_stars_and_gives_back(visit):
    page = visit()
    made(page, "a purple elephant")
    made(page, "a yellow submarine")
    page.keyboard.press("Alt+5")
    cards = page.locator("#library-grid li")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")
    cards.nth(0).hover()
    wait_until(page, "document.querySelector('#library-grid li video').currentTime > 0")
    page.locator("#library-search input, #library-search textarea").fill("ELEPHANT purple")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 1")
    cards.first.hover()
    cards.first.locator('[data-act="queue:star"]').click()
    page.locator('#library-grid li[data-starred="true"]').wait_for()
    page.locator("#library-search input, #library-search textarea").fill("")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")
    page.locator("#library-starred input").check()
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 1")
    page.locator("#library-starred input").uncheck()
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("#library-detail .prompt", has_text="a purple elephant").wait_for()
    detail = page.locator("#library-detail").inner_text()
    assert re.search(r"num_frames\s+17", detail) and re.search(r"fake\s+1", detail)
    page.keyboard.press("Delete")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 1")
    page.locator("#message [data-act]", has_text="Undo").click()
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")
    page.locator("#library-grid .card").first.focus()
    page.keyboard.press("Delete")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 1")
    page.locator("#library-bin input").check()
    page.locator('#library-grid [data-act="queue:restore"]').first.wait_for(state="attached")
    cards.first.hover()
    page.locator('#library-grid [data-act="queue:restore"]').click()
    page.locator("#library-bin input").uncheck()
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")


def test_the_buttons_of_a_card_are_reached_and_pressed_with_keys(visit):
    page = visit()
    made(page, "a green giraffe")
    page.keyboard.press("Alt+5")
    page.locator("#library-grid .card").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator('#library-grid li[data-starred="true"]').wait_for()
    assert page.locator('#library-grid .card[aria-pressed="true"]').count() == 0, "the card itself is not chosen by it"


def test_frames_can_be_stepped_through(page):
    made(page, "step by step")
    wait_until(page, "document.querySelector('.stage video').readyState >= 2")
    page.locator('[data-player="scrub"]').fill("3")
    wait_until(page, "document.querySelector('.player output').textContent === '4 / 17'")
    page.keyboard.press(".")
    wait_until(page, "document.querySelector('.player output').textContent === '5 / 17'")
    page.keyboard.press(",")
    page.keyboard.press(",")
    wait_until(page, "document.querySelector('.player output').textContent === '3 / 17'")


def test_a_video_continues_from_its_last_frame(page):
    made(page, "a long walk")
    page.locator('.stage [data-act="fill:continue"]').click()
    page.locator("#crop-preview img").wait_for()
    assert page.get_by_role("tab", name="Image to video").get_attribute("aria-selected") == "true"
    made(page, "and it goes on")
