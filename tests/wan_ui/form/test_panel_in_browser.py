"""Tests of the places of the form's settings and buttons, in a real Chromium."""

import pytest

from tests.wan_ui.steps import wait_until

pytestmark = pytest.mark.browser

COVERED = """() => {
  const bar = document.querySelector('#actions').getBoundingClientRect();
  const controls = [...document.querySelectorAll('#controls .block')].filter(one => !one.closest('#actions'));
  return controls.filter(one => {
    let {top, bottom, height} = one.getBoundingClientRect();
    for (let parent = one.parentElement; parent; parent = parent.parentElement) {
      if (getComputedStyle(parent).overflowY === 'visible') continue;
      const edge = parent.getBoundingClientRect();
      [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
    }
    return height > 0 && bottom - top > 1 && bottom > bar.top + 1 && top < bar.bottom - 1;
  }).map(one => one.id);
}"""
OPEN = "document.querySelector('#loras')?.getBoundingClientRect().height > 20"


def test_with_more_settings_open_the_estimate_covers_none_of_them_scrolled_or_not(visit):
    page = visit(width=1280, height=800)
    page.locator("#more > button").click()
    wait_until(page, OPEN)
    for is_scrolled in (False, True):
        if is_scrolled:
            page.locator("#loras").scroll_into_view_if_needed()
        assert page.evaluate(COVERED) == [], is_scrolled
        assert page.locator("#generate").bounding_box()["y"] < 800


def test_on_a_phone_the_last_setting_can_be_scrolled_above_the_button(visit):
    page = visit(width=390, height=844)
    page.locator("#more > button").click()
    wait_until(page, OPEN)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    wait_until(page, "scrollY > 0")
    box = page.locator("#loras").bounding_box()
    assert box["y"] + box["height"] <= page.locator("#actions").bounding_box()["y"]


COVERED_CHOICES = """() => [...document.querySelectorAll('#model [role=listbox] li')].filter(one => {
  const {left, top, width, height} = one.getBoundingClientRect();
  return [0.1, 0.5, 0.8, 0.9].some(share => !one.contains(document.elementFromPoint(left + share * width, top + height / 2)));
}).map(one => one.textContent.trim())"""


def test_on_a_phone_nothing_covers_the_open_list_of_models(visit):
    page = visit(width=390, height=844)
    page.locator("#model input").click()
    choices = page.locator("#model [role=listbox]")
    choices.wait_for()
    assert choices.bounding_box()["y"] < page.locator("#model input").bounding_box()["y"], "the list opens upwards here"
    assert page.evaluate(COVERED_CHOICES) == []
