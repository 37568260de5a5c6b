"""Tests of the queue in a real Chromium: order, changes, closed tabs, other browsers, a killed server."""

import re
from collections import defaultdict

import pytest

from tests.wan_ui.conftest import _serving
from tests.wan_ui.steps import generate, held, lists, made, press, rest, wait_until
from wan_ui.gateway.access import Access

pytestmark = pytest.mark.browser

EVENT_OF_GENERATE = """
() => {
  const {components, dependencies} = window.gradio_config;
  const button = components.find(component => component.props.elem_id === 'generate').id;
  return dependencies.find(({targets}) => targets.some(([id, event]) => id === button && event === 'click')).id;
}
"""


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def test_the_queue_can_be_put_in_order_changed_and_thinned_out(page, close_gate):
    close_gate("a held square")
    generate(page, "a held square")
    page.locator('.stage[data-phase="denoising"]').wait_for()
    for prompt in ("one", "two", "three"):
        generate(page, prompt)
        page.locator(".queue li", has_text=prompt).wait_for()
    lists(page, "one", "two", "three")
    assert page.locator(".stage").get_attribute("data-phase") == "denoising", "what runs stays on the stage"
    page.locator(".queue .group", has_text=re.compile(r"96 × 96 · 17 frames\s*compiled")).wait_for()
    press(page, "three", "queue:up")
    lists(page, "one", "three", "two")
    page.locator(".queue li", has_text="two").drag_to(page.locator(".queue li", has_text="one"))
    lists(page, "two", "one", "three")
    press(page, "one", "queue:cancel")
    lists(page, "two", "three")
    press(page, "three", "again:same")
    lists(page, "two", "three", "three")
    press(page, "two", "fill:edit")
    wait_until(page, "document.querySelector('#prompt textarea')?.value === 'two'")
    page.locator("#leave").wait_for()
    page.locator("#prompt textarea").fill("two, changed")
    page.locator("#generate").click()
    lists(page, "two, changed", "three", "three")
    page.locator("#leave").wait_for(state="hidden")
    page.locator("#stop").click()
    wait_until(page, "document.querySelector('.queue').dataset.count === '0'")
    ended = page.locator('.queue li[data-state="finished"] b').all_inner_texts()
    assert ended[:3] == ["three", "three", "two, changed"]


def test_a_touch_drags_an_item_at_its_number_also_while_the_queue_changes(visit, close_gate):
    page = visit(390, 844)
    close_gate("a held square")
    generate(page, "a held square")
    page.locator('.stage[data-phase="denoising"]').wait_for()
    for prompt in ("one", "two", "three", "four"):
        generate(page, prompt)
        page.locator(".queue li", has_text=prompt).wait_for(state="attached")
    page.locator("#queue-toggle").tap()
    lists(page, "one", "two", "three", "four")
    shown, cdp = page.locator(".stage").get_attribute("data-job"), page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]})

    def drag(prompt: str, target: str, part: str, between=lambda: None) -> None:
        def center(text: str) -> tuple[float, float]:
            box = page.locator(".queue li", has_text=text).locator(part).bounding_box()
            return box["x"] + 20, box["y"] + 20

        (x, y), (_, end) = center(prompt), center(target)
        touch("touchStart", (x, y))
        for share in (0.2, 0.4):
            touch("touchMove", (x, y + (end - y) * share))
        between()
        for share in (0.6, 0.8, 1):
            touch("touchMove", (x, y + (center(target)[1] - y) * share))  # a change of the queue may move the items
        touch("touchEnd")

    def queue_changes() -> None:
        assert page.locator('.queue li[data-drag="from"]').count() == 1
        four = page.locator(".queue li", has_text="four").get_attribute("data-job")
        page.evaluate("job => studio.act('queue', 'cancel', {job})", four)
        lists(page, "one", "two", "three")

    drag("three", "one", ".thumb", queue_changes)
    lists(page, "three", "one", "two")
    drag("two", "three", ".words")  # scrolls
    lists(page, "three", "one", "two")
    assert (
        page.locator(".stage").get_attribute("data-job") == shown
        and page.locator('.queue li:is([data-drag="from"])').count() == 0
    )
    page.evaluate("""() => {
      for (const {dataset} of document.querySelectorAll('.queue li[data-job]')) studio.act('queue', 'cancel', {job: dataset.job});
    }""")
    wait_until(page, "document.querySelector('.queue').dataset.count === '0'")


def test_each_press_of_generate_counts_and_a_double_click_or_a_key_held_down_is_one(page):
    """Each press counts even if earlier presses are not answered yet."""
    button, sent = page.evaluate(EVENT_OF_GENERATE), defaultdict(list)

    def handle(route):
        asked = route.request.post_data_json
        if asked["fn_index"] != button:
            return route.continue_()
        sent[next(prompt for prompt in presses if prompt in asked["data"])].append(route)

    def hold_down(key):
        for _ in range(5):  # all events after the first are key repeats
            page.keyboard.down(key)
        page.keyboard.up(key)

    def with_control():
        page.keyboard.down("Control")
        hold_down("Enter")
        page.keyboard.up("Control")

    page.route("**/run/predict", handle)
    generate_button = page.locator("#generate")
    presses = {
        "a click": generate_button.click,
        "a click more": generate_button.click,
        "a double click": generate_button.dblclick,
        "a key held down": lambda: (generate_button.focus(), hold_down("Enter")),
        "keys held down": with_control,
    }
    for prompt, press_it in presses.items():
        page.locator("#prompt textarea").fill(prompt)
        press_it()
        held(page, sent[prompt])
    page.wait_for_timeout(500)
    assert [len(sent[prompt]) for prompt in presses] == [1] * 5
    for (route,) in sent.values():
        route.continue_()
    for prompt in presses:
        page.locator('.queue li[data-state="finished"]', has=page.get_by_text(prompt, exact=True)).wait_for()
    page.unroute("**/run/predict")


def test_two_presses_on_an_empty_stage_show_the_video_that_is_made_first(visit, close_gate):
    """The second press is sent before the first press is answered."""
    close_gate("the first of two")
    page = visit()
    page.locator("#prompt textarea").fill("the first of two")
    page.evaluate("for (const press of [1, 2]) document.querySelector('#generate').click()")
    wait_until(page, "document.querySelectorAll('.queue li[data-state=running], .queue li[data-state=queued]').length === 2")
    page.wait_for_timeout(500)  # time for both answers to arrive
    running = page.locator('.queue li[data-state="running"]').get_attribute("data-job")
    assert page.locator(".stage").get_attribute("data-job") == running
    page.evaluate(
        "for (const {dataset} of document.querySelectorAll('.queue li[data-job]')) studio.act('queue', 'cancel', {job: dataset.job})"
    )
    wait_until(page, "document.querySelector('.queue').dataset.count === '0'")


def test_an_answer_that_comes_late_does_not_bring_an_older_queue_back(page, close_gate):
    close_gate("one that is stopped")
    answers, holds = [], [True]

    def handle(route):
        if holds and '"data":[]' in route.request.post_data:  # the page sends this when it follows no video
            answers.append((route, route.fetch()))
        else:
            route.continue_()

    generate(page, "one that is stopped")
    page.locator('.stage[data-phase="denoising"]').wait_for()
    page.route("**/run/predict", handle)
    generate(page, "one that is soon over")
    lists(page, "one that is soon over")
    held(page, answers)
    page.locator("#stop").click()
    wait_until(page, "document.querySelector('.queue').dataset.count === '0'")
    assert any('data-count=\\"0\\"' not in answer.text() for _, answer in answers), "an answer with the older queue is on its way"
    holds.clear()
    for route, answer in answers:
        route.fulfill(response=answer)
    page.wait_for_timeout(1000)
    assert page.locator(".queue").get_attribute("data-count") == "0"
    page.unroute("**/run/predict")


def test_same_again_keeps_the_seed_and_a_new_seed_does_not(page):
    first = made(page, "twice")
    seed = re.search(r"Seed\s+(\d+)", page.locator(".stage .facts").inner_text())[1]
    for act, is_same in (("again:same", True), ("again:seed", False)):
        page.locator(f'.stage [data-act="{act}"]').click()
        wait_until(page, "first => document.querySelector('.stage').dataset.job !== first", first)
        page.locator('.stage[data-phase="finished"]').wait_for()
        first = page.locator(".stage").get_attribute("data-job")
        assert (re.search(r"Seed\s+(\d+)", page.locator(".stage .facts").inner_text())[1] == seed) is is_same


def test_a_closed_tab_loses_nothing_and_another_tab_shows_the_same(visit, studio, close_gate):
    page = visit()
    close_gate("a held one")
    generate(page, "a held one")
    page.locator('.stage[data-phase="denoising"]').wait_for()
    generate(page, "the one after")
    page.locator('.queue li[data-state="queued"]').wait_for()
    page.close()
    back, other = page.context.new_page(), page.context.new_page()
    for tab in (back, other):
        tab.goto(studio.url)
        tab.locator('.queue li[data-state="running"]', has_text="a held one").wait_for()
        tab.locator('.stage[data-phase="denoising"]').wait_for()
    back.locator("#stop").click()
    for tab in (back, other):
        wait_until(tab, "document.querySelector('.queue').dataset.count === '0'")
        tab.locator('.queue li[data-state="finished"]', has_text="the one after").wait_for()
        tab.locator('.stage[data-phase="cancelled"]').wait_for()


def test_in_another_browser_the_operator_finds_the_job_with_its_progress_and_stops_it(visit, studio, close_gate, data_dir):
    page, browser = visit(), visit()
    gate, _ = close_gate("one elsewhere"), close_gate("one elsewhere", "step 3")
    generate(page, "one elsewhere", 4)
    page.locator('.stage[data-phase="denoising"]').wait_for()
    page.close()
    assert "one elsewhere" not in browser.content()  # another visitor's browser sees nothing of it
    rest(browser)
    browser.goto(Access.load_or_create(data_dir).link(studio.url))
    wait_until(browser, "window.studio?.isOpen")  # the model is busy, not ready
    running = browser.locator('.queue li[data-state="running"]', has_text="one elsewhere")
    running.wait_for()
    running.click()
    browser.locator('.stage[data-phase="denoising"]').wait_for()
    readout = "document.querySelector('.stage .readout').innerText"
    wait_until(browser, f"{readout}.includes('Step 1 of 4')")
    gate.open()
    wait_until(browser, f"{readout}.includes('Step 2 of 4')")
    browser.locator("#stop").click()
    browser.locator('.stage[data-phase="cancelled"]').wait_for()


def test_a_restarted_server_continues_with_the_queue(chromium, close_gate, tmp_path):
    gates = [close_gate("a held square", f"step {number}") for number in (2, 3)]  # a dying server's worker ends its step
    with _serving("fake", tmp_path) as server:
        page = chromium.new_context().new_page()
        page.goto(server.url)
        wait_until(page, "document.querySelector('.status')?.dataset.state === 'ready'")
        generate(page, "a held square", 4)
        page.locator('.stage[data-phase="denoising"]').wait_for()
        for prompt in ("left one", "left two"):
            generate(page, prompt)
            page.locator(".queue li", has_text=prompt).wait_for()
        server._process.kill()
        server._process.wait()
    again = _serving("fake", tmp_path, port=server.port)
    with again:
        page.close()  # Gradio reloads an open tab when the server is back, which would interrupt `goto`
        page = page.context.new_page()
        page.goto(again.url)
        page.locator('.queue li[data-state="running"]', has_text="a held square").wait_for()
        page.locator('.stage[data-phase="denoising"]').wait_for()
        for gate in gates:
            gate.open()
        wait_until(page, "document.querySelectorAll('.queue li[data-state=\"finished\"]').length === 3")
        page.context.close()


@pytest.mark.slow  # the limit holds in tests/backend/engine/test_library.py and tests/wan_ui/routes/test_videos.py
def test_a_visitor_who_waits_too_much_is_told(visit, close_gate):
    page = visit()
    close_gate("a held square")
    generate(page, "a held square")
    page.locator('.stage[data-phase="denoising"]').wait_for()
    job = page.locator(".stage").get_attribute("data-job")
    for number in range(21):
        page.evaluate("job => studio.act('again', 'same', {job})", job)
        if number < 20:
            wait_until(page, "number => document.querySelector('.queue').dataset.count === String(number + 2)", number)
    page.locator('#message .message.shown[data-bad="true"]').wait_for()
    assert "may have 20" in page.locator("#message").inner_text()
    page.evaluate("""() => {
      for (const item of document.querySelectorAll('.queue li[data-state="queued"]'))
        studio.act('queue', 'cancel', {job: item.dataset.job});
    }""")
    page.locator("#stop").click()
    wait_until(page, "document.querySelector('.queue').dataset.count === '0'")
