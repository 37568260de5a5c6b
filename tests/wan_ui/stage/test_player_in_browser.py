"""The stage's player, in a real Chromium."""

import pytest

from tests.wan_ui.steps import made, wait_until
from wan_ui.i18n.english import ENGLISH

pytestmark = pytest.mark.browser

SHOWN = (
    """[...document.querySelectorAll('.stage [data-player=play] .icon')].map(icon => getComputedStyle(icon).display !== 'none')"""
)


def says(page, words: str) -> None:
    wait_until(page, f"document.querySelector('.stage [data-player=play]').title === '{words}'")
    assert page.locator(".stage [data-player=play]").get_attribute("aria-label") == words


def test_the_play_button_is_a_pause_sign_while_the_video_plays(visit):
    page = visit()
    made(page, "a red square")
    wait_until(page, "!document.querySelector('.stage video').paused")
    says(page, ENGLISH.pause)
    assert page.evaluate(SHOWN) == [False, True]
    page.locator(".stage [data-player=play]").click()
    says(page, ENGLISH.play)
    assert page.evaluate(SHOWN) == [True, False]
    page.keyboard.press(".")
    page.locator(".stage [data-player=play]").click()
    says(page, ENGLISH.pause)


CHANGED = """(() => {
    const output = document.querySelector('.stage .player output');
    if (window.seen?.output !== output) window.seen = {output, text: output.firstChild, first: output.textContent};
    return output.textContent !== seen.first;
})()"""


def test_the_frames_number_is_written_into_the_text_that_is_there(page):
    """Replacing the text node would make the browser recompute styles sixteen times a second."""
    made(page, "a red square")
    wait_until(page, "!document.querySelector('.stage video').paused")
    wait_until(page, CHANGED)
    assert page.evaluate("seen.output.firstChild === seen.text")
