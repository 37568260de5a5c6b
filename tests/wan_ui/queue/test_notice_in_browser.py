"""Tests of the browser's notification, which asks for permission once, and of the window's title.

Only the browser's permission and clock are simulated.
"""

import pytest

from tests.gates import Gate
from tests.wan_ui.steps import generate, ready, rest, wait_until

pytestmark = pytest.mark.browser

PERMISSION = """
Object.assign(window, {isAway: false, notices: [], timesAsked: 0});
Object.defineProperty(document, 'hidden', {get: () => window.isAway});
window.Notification = class {
  static permission = 'default';
  static requestPermission() { window.timesAsked += 1; this.permission = 'granted'; }
  constructor(title, {body, tag}) { window.notices.push([title, body]); }
};
"""
TITLE = "Wan TPU Studio"


def make_one_that_takes_long(page, gate: Gate) -> None:
    """Generate a video that takes 40 seconds by the page's clock.

    Gradio's client handles each message of the server in a timer. Moving the clock delays the timers that wait, so a message that
    arrives meanwhile would be handled before an earlier message. Therefore the page first shows the last message before the gate.
    """
    generate(page, gate.name)
    page.locator(".stage .detail", has_text="Step 1 of 2").wait_for()
    wait_until(page, f"document.title.endsWith(' % · {TITLE}')")
    page.clock.fast_forward(40_000)
    gate.open()
    page.locator(".queue li[data-state=finished]", has_text=gate.name).wait_for()


def test_it_asks_once_tells_when_nobody_looks_and_says_it_in_the_title(visit, close_gate):
    page = visit()
    rest(page)
    page.add_init_script(PERMISSION)
    page.clock.install()
    page.reload()
    ready(page)
    make_one_that_takes_long(page, close_gate("a red square"))
    page.locator("#notice").wait_for()
    wait_until(page, f"document.title === '{TITLE}'")
    page.locator("#notice [data-notice=yes]").click()
    page.locator("#notice").wait_for(state="hidden")
    assert page.evaluate("timesAsked") == 1
    page.evaluate("isAway = true")
    make_one_that_takes_long(page, close_gate("a <i>blue</i> square"))
    wait_until(page, "notices.length > 0")
    assert page.evaluate("notices") == [["Your video is finished", "a <i>blue</i> square"]]
    assert page.title() == f"Your video is finished · {TITLE}"
    page.evaluate("isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(page, f"document.title === '{TITLE}'")
    make_one_that_takes_long(page, close_gate("a green square"))
    assert page.evaluate("notices.length") == 1 and not page.locator("#notice").is_visible(), "who looks is not told"
