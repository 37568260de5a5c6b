"""Tests of a live video in a real Chromium: keys, prompt, reload, stop, library, and limits of other visitors."""

import json
import urllib.error
import urllib.request

import pytest

from tests.wan_ui.steps import wait_until

pytestmark = pytest.mark.browser

# JavaScript: the place of the square as a fraction of the frame's width, and its colour, from the canvas.
SQUARE = """
  const canvas = document.querySelector('#live-canvas'), {width, height} = canvas;
  const {data} = canvas.getContext('2d').getImageData(0, Math.floor(height / 2), width, 1);
  const lit = [...Array(width).keys()].filter(x => Math.max(data[4 * x], data[4 * x + 2]) > 150);
  const red = lit.length ? data[4 * lit[0]] : 0, blue = lit.length ? data[4 * lit[0] + 2] : 0;
  return {place: lit.length ? lit[0] / width : -1, colour: red > blue ? 'red' : 'blue', frame: Number(canvas.dataset.frame ?? -1)};
"""


def square(page) -> dict:
    return page.evaluate(f"(() => {{{SQUARE}}})()")


def seen(page, condition: str) -> None:
    wait_until(page, f"(() => {{const square = (() => {{{SQUARE}}})(); return {condition};}})()")


def stands_still(page) -> float:
    """Wait until the square has not moved for twelve frames, and return its place."""
    for _ in range(100):
        before = square(page)
        seen(page, f"square.frame >= {before['frame'] + 12}")
        if abs(square(page)["place"] - before["place"]) < 0.05:
            return before["place"]
    raise AssertionError("the square does not stand still")


@pytest.fixture
def running(page):
    """Return a page whose live video shows its first frame. Nothing of an earlier live video remains."""
    page.locator('#views [data-view="live"]').click()
    page.locator("#live-prompt").fill("a red square")
    page.locator("#live-start").click()
    page.locator("#live-stop").wait_for()  # until then the page may still draw the earlier video
    page.locator("#live-canvas").evaluate("canvas => { delete canvas.dataset.frame; canvas.width = canvas.width; }")
    seen(page, "square.frame >= 0")
    yield page
    if page.locator("#live-stop").is_visible():
        page.locator("#live-stop").click()
        wait_until(page, "!document.querySelector('#live-start').hidden")


def test_a_typed_prompt_stays_when_another_model_is_chosen(page):
    page.locator('#views [data-view="live"]').click()
    field, chosen = page.locator("#live-prompt"), "picker => picker.dispatchEvent(new Event('change', {bubbles: true}))"
    field.fill("")
    page.locator("#live-preset").evaluate(chosen)
    example = field.input_value()
    field.fill("a fox in the snow")
    page.locator("#live-preset").evaluate(chosen)
    assert example and field.input_value() == "a fox in the snow"
    field.fill("")
    page.locator("#live-preset").evaluate(chosen)
    assert field.input_value() == example


def test_the_arrow_keys_steer_and_letting_go_ends_it(running):
    start = square(running)["place"]
    running.locator("#live-canvas").click()
    running.keyboard.down("ArrowRight")
    seen(running, f"square.place > {start + 0.15}")
    running.keyboard.up("ArrowRight")
    place = stands_still(running)
    button = running.locator('[data-steer="left"]')
    button.dispatch_event("pointerdown", {"pointerId": 1})
    seen(running, f"square.place < {place - 0.1}")
    button.dispatch_event("pointerup", {"pointerId": 1})


def test_a_new_prompt_holds_from_the_next_block_on(running):
    assert square(running)["colour"] == "red"
    running.locator("#live-prompt").fill("a blue square")
    running.locator("#live-say").click()
    seen(running, "square.colour === 'blue'")
    running.locator("#live-prompt").fill(" ")
    running.locator("#live-say").click()
    wait_until(running, "document.querySelector('.live .note').innerText.includes('is empty')")
    assert running.locator(".live .dot").is_visible()


def test_a_page_that_is_loaded_again_continues(running):
    frame = square(running)["frame"]
    running.reload()
    wait_until(running, "window.studio?.isOpen")
    running.locator('#views [data-view="live"]').click()
    seen(running, f"square.frame > {frame}")


def test_a_stopped_video_is_in_the_library_and_plays(running):
    running.locator("#live-stop").click()
    wait_until(running, "document.querySelector('.live .headline').innerText.includes('in your library')")
    running.locator('#views [data-view="library"]').click()
    running.locator("#library-grid li").first.click()
    running.locator("#library-detail", has_text="a red square").wait_for(state="visible")


def post(page, path: str, body: object, cookie: str = "") -> int:
    """Send a request as another visitor and return the status."""
    url = page.url.split("?")[0] + path
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", "cookie": cookie})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_another_visitor_neither_sees_nor_steers_it(running):
    path = f"studio/live/{running.locator('.live').get_attribute('data-job')}"
    assert post(running, f"{path}/say", {"action": "left"}) == post(running, f"{path}/stop", {}) == 404
    assert running.locator(".live .dot").is_visible()
