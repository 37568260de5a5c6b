"""Tests that a view needs only its folder (`tests/fifth_view`) and its name in the list of views to work as other views do."""

import pytest

from backend.settings import PROJECT_FOLDER
from tests.fifth_view.panel import FIFTH
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.steps import generate, made, rest, wait_until
from wan_ui.i18n.languages import LANGUAGES
from wan_ui.view import column_classes
from wan_ui.views import VIEWS


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    with _serving("fake", tmp_path_factory.mktemp("fifth"), more=("--view", "tests.fifth_view.panel:FIFTH")) as server:
        yield _studio("fake", server)


def test_every_key_stands_for_one_view():
    assert len({view.key for view in VIEWS}) == len(VIEWS) <= 9  # the keys Alt+1 to Alt+9
    assert [view.key for view in VIEWS] == ["create", "edit", "live", "compare", "library", "models", "system"]


def test_the_title_is_the_projects_name():
    name = (PROJECT_FOLDER / "README.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
    assert LANGUAGES["en"].product == name


def test_a_column_names_the_views_in_which_it_is_seen():
    views = (*VIEWS, FIFTH)
    assert "in-fifth" in column_classes("form", views) and "phone-fifth" not in column_classes("form", views)
    assert column_classes("fifth", views) == ["place", "in-fifth", "phone-fifth"]
    assert "shown" in column_classes(VIEWS[0].key, views)


@pytest.mark.browser
def test_the_header_the_help_and_its_key_lead_to_it(visit):
    page = visit()
    assert page.locator("#views button").all_inner_texts()[-1] == "Jobs"
    page.keyboard.press("?")
    assert "Alt 1 – 8" in page.locator("#help").inner_text() and "Models, System, Jobs" in page.locator("#help").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+8")
    page.locator("#fifth-column").wait_for(state="visible")
    assert page.locator("#controls").is_visible() and not page.locator("#create-column").is_visible()
    wait_until(page, "document.querySelector('#fifth-form')?.innerText === 'seen'")
    page.keyboard.press("Alt+1")
    page.locator("#fifth-column").wait_for(state="hidden")


@pytest.mark.browser
def test_it_opens_with_the_page_reads_the_form_and_follows_the_queue(visit, studio):
    page = visit()
    rest(page)
    page.goto(f"{studio.url}?hello=you")
    wait_until(page, "document.querySelector('#fifth-form')?.textContent === 'opened you'")
    made(page, "the first one")
    generate(page, "the second one")
    page.locator('#views [data-view="fifth"]').click()
    wait_until(page, "document.querySelector('#fifth-queue')?.innerText.includes('the second one')")
    assert "the first one" in page.locator("#fifth-queue").inner_text()
    page.locator("#prompt textarea").fill("a third one")
    page.locator("#fifth-button button").click()
    wait_until(page, "document.querySelector('#fifth-form')?.innerText === 'read a third one'")
    assert page.request.get(f"{studio.url}studio/fifth").text() == "2 jobs"


@pytest.mark.browser
def test_on_a_phone_it_has_the_page_to_itself(visit):
    page = visit(width=390, height=844)
    page.locator('#views [data-view="fifth"]').click()
    page.locator("#fifth-column").wait_for(state="visible")
    assert not page.locator("#controls").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
