"""Tests of copying over plain HTTP under a host name, where browsers give pages no clipboard."""

import pytest

from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS, PATIENCE_MS, _serving
from tests.wan_ui.steps import ready, wait_until

pytestmark = pytest.mark.browser

NAME = "studio.example"
REFUSES = "document.execCommand = () => false"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with _serving("fake", tmp_path_factory.mktemp("studio"), more=["--allowed-host", NAME]) as server:
        yield f"http://{NAME}:{server.port}/"


@pytest.fixture
def open_page(address):
    from playwright.sync_api import sync_playwright

    arguments = [*CHROMIUM_ARGUMENTS, f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=arguments) as browser:

        def open_with(script: str = ""):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(PATIENCE_MS)
            page.add_init_script(script)
            page.goto(address)
            ready(page)
            assert not page.evaluate("isSecureContext") and page.evaluate("navigator.clipboard === undefined")
            return page

        yield open_with


def pasted(page) -> str:
    """Return the text that Ctrl+V inserts into an empty prompt."""
    page.keyboard.press("Alt+1")
    page.locator("#prompt textarea").fill("")
    page.keyboard.press("Control+V")
    return page.locator("#prompt textarea").input_value()


def selected(page) -> str:
    return page.evaluate(
        "(({value, selectionStart, selectionEnd}) => value.slice(selectionStart, selectionEnd))(document.activeElement)"
    )


def copy_report(page) -> str:
    """Press the button that copies the System view's report, and return the report."""
    page.keyboard.press("Alt+7")
    button = page.locator("[data-copy-text]")
    report = button.get_attribute("data-copy-text")
    button.click()
    return report


def copy_link(page) -> str:
    """Press the button that copies the form's settings as a link, and return the link."""
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:link"]').click()
    wait_until(page, "document.querySelector('#message input')?.value.startsWith('http')")
    return page.locator("#message input").input_value()


def test_a_report_and_a_link_are_copied(open_page):
    page = open_page()
    report = copy_report(page)
    page.locator("#message .shown", has_text="Report copied.").wait_for()
    assert pasted(page) == report
    link = copy_link(page)
    page.locator("#message .shown", has_text="Link copied.").wait_for()
    assert pasted(page) == link


def test_a_browser_that_refuses_shows_the_text_selected(open_page):
    page = open_page(REFUSES)
    report = copy_report(page)
    page.locator("#message .shown", has_text="Press Ctrl+C").wait_for()
    assert selected(page) == report
    page.keyboard.press("Alt+1")
    link = copy_link(page)
    page.locator("#message .shown", has_text="Press Ctrl+C").wait_for()
    assert selected(page) == link
