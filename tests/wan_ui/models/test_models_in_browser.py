"""Tests of the Models view with a Hub on this machine: download, pause, reload, resume, remove, and visitors' rights."""

import pytest

from presets import load_preset
from tests.hub_runs import blobs_of, demo_hub
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.steps import again, generate, ready, rest, wait_until
from wan_ui.gateway.access import Access

CHUNK = 10 * 2**20  # huggingface_hub writes this much at a time
MODEL = load_preset("wan2.2-ti2v-5b-720p").model

pytestmark = [pytest.mark.browser, pytest.mark.demo_model]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Start a Hub that has the demo model under the name of a large model."""
    with demo_hub(tmp_path_factory.mktemp("hub"), MODEL) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def studio(data_dir, hub, home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(home))
        patch.setenv("HF_ENDPOINT", hub.url)
        with _serving("fake", data_dir) as server:
            yield _studio("fake", server)


def as_operator(page, studio, data_dir):
    rest(page)
    page.goto(Access.load_or_create(data_dir).link(studio.url))
    ready(page)
    return page


def open_models(page):
    page.locator('#views [data-view="models"]').click()
    page.locator("#models .models").wait_for()


def card(page, state: str = ""):
    return page.locator(f'#models li[data-model="{MODEL}"]' + (f'[data-state="{state}"]' if state else ""))


def test_a_model_is_fetched_paused_resumed_and_removed(visit, studio, data_dir, hub, home):
    hub.stop_after, hub.trickles = CHUNK + 100_000, True  # the rest of each file arrives very slowly
    page = as_operator(visit(), studio, data_dir)
    open_models(page)
    assert "at least" in card(page, "elsewhere").inner_text()
    card(page).get_by_role("button", name="Download").click()
    card(page, "running").wait_for()
    wait_until(page, "document.querySelector('#models [data-state=running] .bar i')?.style.width.match(/[1-9]/)")
    page = again(page)
    open_models(page)
    card(page, "running").get_by_role("button", name="Pause").click()  # the download continued without the page
    card(page, "paused").wait_for()
    assert "Paused at" in card(page).inner_text() and "of 30.8 MB" in card(page).inner_text()
    hub.stop_after, hub.trickles = None, False
    begun = [sent for sent in hub.log if sent.start == 0]
    card(page).get_by_role("button", name="Resume").click()
    card(page, "here").wait_for()
    assert any(sent.start for sent in hub.log[len(begun) :])
    card(page).get_by_role("button", name="Remove").click()
    assert card(page, "here").count() == 1 and list(blobs_of(home, MODEL).iterdir())  # Remove needs a confirmation
    page.locator("#message .message.shown button", has_text="Remove").click()
    page.locator("#message .message.shown", has_text="Removed").wait_for()
    card(page, "elsewhere").wait_for()
    assert not blobs_of(home, MODEL).exists()


def test_visitors_see_what_is_here_and_fetch_nothing(visit, studio, hub):
    page, before = visit(), len(hub.log)
    open_models(page)
    page.locator('#models li[data-model="embedded:wan-tiny"]').wait_for()
    assert card(page).count() == 0 and page.locator('#models [data-act^="model:"]').count() == 0
    for what in ("fetch", "remove", "ask", "pause"):
        page.evaluate("([what, value]) => studio.act('model', what, {value})", [what, MODEL])
    page.wait_for_timeout(1500)
    assert len(hub.log) == before and not page.locator("#message .message.shown").count()


def test_what_would_fit_is_a_button_that_fills_the_form_and_makes_nothing(page):
    generate(page, "a memory that is short")
    page.locator('.stage[data-phase="failed"]').wait_for()
    assert "It would fit at 96x96 with 5 frames" in page.locator(".stage .veil").inner_text()
    page.locator('.stage .actions [data-act="fill:fits"]').first.click()
    page.locator("#message .message.shown", has_text="fit into memory").wait_for()
    wait_until(page, "document.querySelector('#length input').value.includes('5 frames')")
    assert page.locator("#prompt textarea").input_value() == "a memory that is short"
    assert page.locator('.stage[data-phase="failed"]').count() == 1


def test_the_form_says_where_the_others_are(page):
    page.locator("#preset-note summary").click()
    page.locator('#preset-note [data-view="models"]').click()
    page.locator("#models .models").wait_for()


@pytest.mark.slow  # every view fits a phone in test_page_in_browser.py
def test_on_a_phone_every_card_has_the_width_of_the_page(visit, studio, data_dir):
    page = as_operator(visit(width=390, height=844), studio, data_dir)
    open_models(page)
    card(page).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
