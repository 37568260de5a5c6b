"""Tests of characters in a real Chromium: add, name, show on the timeline, find in prompts, change and offer again."""

import json

import pytest
from PIL import Image

from tests.backend.schemas.test_characters import NAMED, NAMES
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.form.test_storyboard_in_browser import begin, choose, film, generated, state, until_made
from tests.wan_ui.steps import again, wait_until

pytestmark = pytest.mark.browser
MODEL = "Demo model for editing"


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir, more=["--offer", "wan-tiny-vace"]) as server:
        yield _studio("fake", server)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    for name, colour in (("Anna", "red"), ("IMG_1", "blue"), ("IMG_2", "green")):
        Image.new("RGB", (40, 60), colour).save(folder / f"{name}.png")
    return folder


def take_model(page) -> None:
    page.locator("#preset input").click()
    page.locator("ul[role=listbox] li", has_text=MODEL).click()
    wait_until(page, "document.querySelector('#shots-figures i').dataset.most === '1'")


def add(page, picture, name: str) -> None:
    count = page.locator(".film-figures li").count()
    page.locator("[name=figure-new]").set_input_files(picture)
    wait_until(page, "count => document.querySelectorAll('.film-figures li').length > count", arg=count)
    page.locator("[name=figure]").last.fill(name)


def faces(page) -> list[int]:
    return page.locator(".film-block").evaluate_all("blocks => blocks.map(one => one.querySelectorAll('em > *').length)")


@pytest.mark.parametrize("width", [pytest.param(1440, marks=pytest.mark.slow), 390])
def test_shots_show_the_figures_that_they_name_and_only_those_are_regenerated(width, visit, pictures):
    page = visit(width=width, height=844)
    begin(page, "Anna waits", "a red square", "anna's house")
    assert page.locator(".film-figures .hint").inner_text().startswith("Characters need a VACE model")
    assert not page.locator("[name=figure-new]").locator("..").is_visible()
    take_model(page)
    page.locator("[name=figure-new]").set_input_files(pictures / "Anna.png")
    wait_until(page, "document.querySelector('[name=figure]')?.value === 'Anna'")
    add(page, pictures / "IMG_1.png", "<b>dog</b>")
    assert faces(page) == [1, 0, 1] and page.locator(".film-figures output").all_inner_texts() == ["Shots: 1, 3", "not used"]
    assert "Characters: Anna" in page.locator(".film-block").first.get_attribute("aria-label")
    for index in (1, 2):
        choose(page, index)
        page.locator(".shot-detail [name=start]").select_option("cut")
    assert page.locator(".shot-figures").inner_text() == "Characters: Anna"
    assert [one["name"] for one in film(page)["figures"]] == ["Anna", "<b>dog</b>"]
    generated(page)
    until_made(page, [True, True, True])
    page.locator("[name=figure-picture]").first.set_input_files(pictures / "IMG_2.png")
    until_made(page, [False, True, False])
    assert state(page).startswith("Shots to generate: 1, 3.")
    page.locator("[data-figure=remove]").first.click()
    page.locator("[data-figure=again]").click()
    assert page.locator("[name=figure]").evaluate_all("all => all.map(one => one.value)") == ["<b>dog</b>", "Anna"]
    until_made(page, [False, True, False])
    choose(page, 1)
    page.locator(".shot-detail textarea").fill("Anna and the <b>Dog</b>")
    page.locator("#generate").click()
    wait_until(page, "document.querySelector('#prompt-note').innerText.includes('Shot 2 names <b>dog</b> and Anna, but')")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page = again(page)
    wait_until(page, "document.querySelectorAll('.film-figures li').length === 2")
    assert page.locator("[name=figure]").evaluate_all("all => all.map(one => one.value)") == ["Anna", "<b>dog</b>"]
    assert faces(page) == [1, 0, 1], "as it was sent last"


@pytest.mark.slow
def test_the_next_storyboard_is_offered_the_figures_and_settings_that_come_back_have_their_pictures(visit, pictures):
    page = visit()
    take_model(page)
    begin(page, "Anna waits", "a red square")
    add(page, pictures / "Anna.png", "Anna")
    generated(page)
    until_made(page, [True, True])
    page.locator('[data-act="fill:use"]').first.click()
    wait_until(page, "document.querySelectorAll('.film-block[data-made=true]').length === 2")
    assert film(page)["figures"][0]["name"] == "Anna" and film(page)["figures"][0]["image"]
    page.locator("[data-figure=remove]").click()
    page.evaluate("localStorage.removeItem('studio-film')")
    page = again(page)
    wait_until(page, "document.querySelectorAll('.film-block').length === 2")
    wait_until(page, "document.querySelector('[name=figure]')?.value === 'Anna'")
    assert film(page)["figures"] == [{"name": "Anna", "image": None}], "a link and the last session keep no pictures"
    page.locator("[data-figure=remove]").click()
    page.locator("[data-figure=again]", has_text="Anna").click()
    assert film(page)["figures"][0]["image"] and faces(page) == [1, 0]


def test_the_page_finds_names_as_the_server_does(visit, pictures):
    page = visit()
    take_model(page)
    begin(page, "x")
    for name in NAMES[:8]:
        add(page, pictures / "Anna.png", name)
    choose(page, 0)
    for prompt, names in NAMED.items():
        page.locator(".shot-detail textarea").fill(prompt)
        shown = page.locator(".film-block").first.locator("em > *").evaluate_all("all => all.map(one => one.title)")
        assert sorted(shown) == sorted(name for name in names if name in NAMES[:8]), prompt
    assert len(json.loads(page.locator("#shots textarea").input_value())["figures"]) == 8
    assert not page.locator("[name=figure-new]").locator("..").is_visible(), "there may be eight"
