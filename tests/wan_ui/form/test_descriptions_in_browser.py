"""Tests of the "?" beside the labels of the form, which opens the description of a setting, in a real Chromium."""

import pytest

from backend.schemas.settings import SETTINGS
from tests.wan_ui.builders import CHINESE
from tests.wan_ui.steps import wait_until

pytestmark = pytest.mark.browser
NARROW = {"width": 390, "height": 844}
OPEN = ":popover-open"


def test_each_setting_of_the_form_has_a_question_mark(page):
    page.locator("#more > button").first.click()
    page.locator("#loras").wait_for()
    controls = page.locator("#controls .block:not(#more):has([data-testid=block-info], .label-text)")
    ids = [control.get_attribute("id") for control in controls.all() if control.is_visible()]
    without = [name for name in ids if name and not page.locator(f"#{name} > .about").count()]
    assert {*without} <= {"prompt", "seed-random"} and len(ids) > 15
    assert page.get_by_role("button", name="Steps ?", exact=True).count() == 1
    assert page.get_by_role("spinbutton", name="number input for Steps", exact=True).count() == 1  # the label stays short


def test_a_description_opens_by_pointer_and_keyboard_and_closes_on_escape(page, close_gate):
    close_gate("a held square")
    page.locator("#prompt textarea").fill("a held square")
    page.locator("#generate").click()
    page.locator('.stage[data-phase="denoising"]').wait_for()
    about = page.locator("#steps > .about")
    about.click()
    assert page.locator(OPEN).inner_text() == SETTINGS["steps"].description
    page.keyboard.press("Escape")
    assert page.locator(OPEN).count() == 0
    assert page.locator('.stage[data-phase="denoising"]').count() == 1  # the same key stops a video if nothing is open
    page.locator("#steps input[type=range]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator(OPEN).inner_text() == SETTINGS["steps"].description
    page.locator("#flow-shift > .about").click()
    assert page.locator(OPEN).all_inner_texts() == [SETTINGS["flow_shift"].description]
    page.locator("#prompt textarea").click()
    assert page.locator(OPEN).count() == 0
    page.locator("#stop").click()
    page.locator('.stage[data-phase="cancelled"]').wait_for()


def test_a_touch_opens_a_description_in_the_visitors_language_and_moves_nothing(chromium, studio):
    context = chromium.new_context(locale="zh-CN", viewport=NARROW, has_touch=True)
    page = context.new_page()
    page.goto(studio.url)
    wait_until(page, "window.studio?.isOpen && document.querySelector('.status')?.dataset.state === 'ready'")
    before = page.locator("#seed").bounding_box()
    page.locator("#guidance > .about").tap()
    assert page.locator(OPEN).inner_text() == CHINESE.describe_setting("guidance")
    box = page.locator(OPEN).bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= NARROW["width"]
    assert page.locator("#seed").bounding_box() == before
    context.close()


def test_the_strength_of_edit_is_described(page, tmp_path):
    page.locator('#views [data-view="edit"]').click()
    assert page.locator("#about-edit-strength").text_content() == SETTINGS["strength"].description
