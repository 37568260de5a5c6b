"""Tests of the form of a four-step preset, in a real Chromium: guidance on the first steps, negative prompt without guidance."""

import json

import pytest

from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.steps import held, ready, rest, wait_until

pytestmark = pytest.mark.browser

FAST, LARGER = "wan2.2-t2v-a14b-480p-fast", "wan2.2-t2v-a14b-720p-fast"
TYPES_AS_IT_IS_DRAWN = """
new MutationObserver((changes, observer) => {
  const field = document.querySelector('#guided-steps input[type=number]');
  if (!field?.offsetParent) return;
  observer.disconnect();
  field.value = '1';
  field.dispatchEvent(new InputEvent('input', {bubbles: true}));
}).observe(document.body, {subtree: true, childList: true, attributes: true})
"""
VALUE = "document.querySelector('#{} input[type=number]').value === '{}'"


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir, more=["--offer", FAST, "--offer", LARGER]) as server:
        yield _studio("fake", server)


def choose(page, title: str) -> None:
    page.locator("#preset input").click()
    page.get_by_role("option", name=title, exact=True).click()


def put(page, name: str, value: str) -> None:
    page.locator(f"#{name} input[type=number]").fill(value)
    page.locator(f"#{name} input[type=number]").blur()


def guide_first_step(page) -> None:
    """Set guidance on the first step only. The answer to the preset's choice can arrive before or after that."""
    put(page, "guided-steps", "1")
    wait_until(page, VALUE.format("guidance", "3.5"))
    rest(page)
    assert page.evaluate(" && ".join(VALUE.format(*one) for one in (("guided-steps", "1"), ("guidance", "3.5"))))


def kept_settings(page, name: str) -> dict:
    """Store the form's settings as a user preset and return them."""
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill(name)
    page.locator('[data-act="own:save"]').click()
    page.locator('[data-act="own:load"]', has_text=name).wait_for()
    with page.expect_download() as download:
        page.locator("#own-menu a[download]").click()
    return json.loads(download.value.path().read_text())["presets"][name]


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
def test_the_settings_of_four_steps_are_there_where_they_are_of_use(width, visit):
    page = visit(width=width, height=900)
    assert page.locator("#guided-steps").count() == 0 or not page.locator("#guided-steps").is_visible()
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    page.locator("#guided-steps").wait_for()
    page.locator("#nag").wait_for()
    box, panel = page.locator("#nag").bounding_box(), page.locator("#steps").bounding_box()
    assert box["width"] > 100 and box["y"] > panel["y"]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_one_number_guides_the_first_steps_and_the_request_says_so(visit):
    page = visit()
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    page.locator("#prompt textarea").fill("a fox runs")
    guide_first_step(page)
    put(page, "nag", "11")
    settings = kept_settings(page, "one")
    assert (settings["guidance"], settings["guidance_interval"], settings["nag"]) == ([3.5, 3.5], [0.0, 0.25], 11.0)
    page.locator("#own-menu summary").click()
    rest(page)  # an answer during typing would restore the old number
    with page.expect_response(lambda answer: f'{{"data":[1,"{FAST}",8]' in (answer.request.post_data or "")) as answer:
        put(page, "steps", "8")  # one step of eight, not two
    assert answer.value.json()["data"] == [13]
    for number in range(40):  # the end of guidance changes a moment later, and no part of the page shows it
        page.wait_for_timeout(250)
        settings = kept_settings(page, f"eight {number}")
        if settings["guidance_interval"] != [0.0, 0.25]:
            break
        page.locator("#own-menu summary").click()
    assert (settings["steps"], settings["guidance_interval"]) == (8, [0.0, 0.13])
    page.locator("#own-menu summary").click()
    put(page, "guided-steps", "0")
    wait_until(page, VALUE.format("guidance", "1"))
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:load"]', has_text="one").click()
    wait_until(page, VALUE.format("guided-steps", "1"))
    wait_until(page, VALUE.format("nag", "11"))
    choose(page, "Demo model trained on synthetic shapes")
    page.locator("#guided-steps").wait_for(state="hidden")


def test_what_is_typed_in_the_moment_in_which_the_answer_is_drawn_stays(visit):
    """Gradio draws the answer over the typed text before it dispatches an event."""
    page = visit()
    rest(page)
    page.evaluate(TYPES_AS_IT_IS_DRAWN)
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    wait_until(page, VALUE.format("guidance", "3.5"))
    rest(page)
    assert page.evaluate(" && ".join(VALUE.format(*one) for one in (("guided-steps", "1"), ("guidance", "3.5"))))


def test_a_number_typed_faster_than_the_server_answers_counts_whole(visit):
    page, requests = visit(), []
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    guide_first_step(page)

    def handle(route):
        if not requests and f'{{"data":[1,"{FAST}"' in route.request.post_data:
            requests.append(route)
        else:
            route.continue_()

    rest(page)  # an answer on its way would draw the field again, and what is typed meanwhile would be lost
    page.route("**/run/predict", handle)
    for _ in range(20):  # on a busy machine an older answer can redraw the field between these two lines: it loses the focus
        page.locator("#steps input[type=number]").select_text()
        page.keyboard.type("1")
        page.wait_for_timeout(3000)
        if requests:
            break
    held(page, requests)
    page.keyboard.type("2")
    page.wait_for_timeout(300)
    with page.expect_response(lambda answer: f'{{"data":[1,"{FAST}",12]' in (answer.request.post_data or "")) as answer:
        requests[0].continue_()
    assert answer.value.json()["data"] == [9]


class Held:
    """Delays the requests that the page sends when this preset is chosen, until they are released."""

    def __init__(self, page, preset: str):
        self._beginning, self._requests, self._is_released = f'{{"data":["{preset}"', [], False
        self._page = page
        page.route("**/run/predict", self._handle)

    def _handle(self, route) -> None:
        if self._is_released or self._beginning not in (route.request.post_data or ""):
            route.continue_()
        else:
            self._requests.append(route)

    def release(self) -> None:
        held(self._page, self._requests)
        rest(self._page)
        self._is_released = True
        for request in self._requests:
            request.continue_()
        rest(self._page)
        self._page.unroute("**/run/predict")


def test_a_model_chosen_while_the_page_opens_stays(visit):
    page = visit()
    answer = Held(page, "wan-tiny")
    rest(page)
    page.reload()
    ready(page)
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    answer.release()
    assert page.locator("#preset input").input_value() == "Wan 2.2 text to video A14B, 480p, 4 steps"
    guide_first_step(page)


def test_a_choice_is_asked_once_and_a_look_at_the_list_of_models_changes_nothing(visit):
    page, asked = visit(), []
    page.on("request", lambda request: asked.append(request.post_data or "") if "/run/predict" in request.url else None)
    rest(page)
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    wait_until(page, VALUE.format("steps", "4"))
    put(page, "steps", "7")
    for key in ("Tab", "Escape"):
        page.locator("#preset input").click()
        page.locator("li[role=option]").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press(key)
        page.locator("#preset input").blur()
        rest(page)
        assert page.evaluate(VALUE.format("steps", "7")), key
    assert len([one for one in asked if one.startswith(f'{{"data":["{FAST}"')]) == 1
    page.locator("#preset input").click()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # a choice by keyboard
    wait_until(page, VALUE.format("steps", "4"))
    page.locator("#preset input").blur()
    put(page, "steps", "7")
    choose(page, page.locator("#preset input").input_value())  # choosing the current preset again restores its default values
    wait_until(page, VALUE.format("steps", "4"))
    rest(page)


def test_what_is_typed_before_the_answer_to_the_presets_choice_stays(visit):
    page = visit()
    rest(page)
    answer = Held(page, FAST)
    choose(page, "Wan 2.2 text to video A14B, 480p, 4 steps")
    put(page, "steps", "7")
    page.locator("#more > button").click()
    page.locator("#negative-prompt textarea").press_sequentially("blur")
    answer.release()
    assert page.evaluate(VALUE.format("steps", "7"))
    assert page.locator("#negative-prompt textarea").input_value() == "blur"
    assert page.evaluate(VALUE.format("flow-shift", "5"))  # the preset's default, because nothing was typed
    answer = Held(page, LARGER)
    choose(page, "Wan 2.2 text to video A14B, 720p, 4 steps")
    put(page, "guided-steps", "1")
    wait_until(page, VALUE.format("guidance", "3.5"))
    answer.release()
    for name, value in (("guided-steps", "1"), ("guidance", "3.5"), ("guidance-end", "25"), ("steps", "4")):
        assert page.evaluate(VALUE.format(name, value)), name
    choose(page, "Demo model trained on synthetic shapes")
    wait_until(page, VALUE.format("steps", "20"))
    assert page.locator("#negative-prompt textarea").input_value() == ""
