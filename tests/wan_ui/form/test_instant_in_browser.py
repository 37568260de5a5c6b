"""Tests of instant drafts in a real Chromium: typing, order, other visitors, a video, a dead worker, a hidden tab, a phone."""

import os
import signal

import pytest

from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.steps import made, ready, wait_until

pytestmark = pytest.mark.browser

WORDS = "a red circle moving right over a dark green background"
KEY_MILLISECONDS = 60_000 / 200 / (len(WORDS) / len(WORDS.split()))  # 200 words per minute
# JavaScript: store the number and prompt of each draft that the page shows.
WATCH = """() => {
  window.drafts = [];
  const store = () => {
    const {hidden, dataset} = document.querySelector('#draft .draft');
    if (!hidden && dataset.number !== window.drafts.at(-1)?.number) window.drafts.push({...dataset});
  };
  new MutationObserver(store).observe(document.querySelector('#draft'), {subtree: true, childList: true, attributes: true});
}"""
IMAGE = "#draft .draft:not([hidden]) img"


@pytest.fixture(scope="module")
def studio(own_studio):
    """A studio whose worker has the model of the drafts: the pretend pipeline loads no model ahead."""
    return own_studio


def turn_on(page) -> None:
    page.evaluate(WATCH)
    page.locator("#instant input").check()


def type_prompt(page, words: str) -> None:
    page.locator("#prompt textarea").fill("")
    page.locator("#prompt textarea").press_sequentially(words, delay=KEY_MILLISECONDS)


def wait_for_draft(page, prompt: str) -> None:
    wait_until(page, "prompt => !document.querySelector('#draft .draft').hidden && drafts.at(-1)?.prompt === prompt", prompt)


def shown_drafts(page) -> list[dict]:
    return page.evaluate("drafts")


def test_ten_words_at_200_words_per_minute_lose_no_key_and_show_no_draft_out_of_order(visit):
    page = visit()
    turn_on(page)
    type_prompt(page, WORDS)
    assert page.locator("#prompt textarea").input_value() == WORDS
    wait_for_draft(page, WORDS)
    assert page.locator("#draft .detail").inner_text() == page.locator(IMAGE).get_attribute("alt") == WORDS
    assert (
        page.evaluate(f"(() => {{ const image = document.querySelector('{IMAGE}'); return image.complete && image.width; }})()")
        > 0
    )
    for word in (" and", " then", " left"):  # pauses in which a draft starts: each next key replaces it
        page.locator("#prompt textarea").press_sequentially(word, delay=KEY_MILLISECONDS)
        page.wait_for_timeout(600)
    assert page.locator("#prompt textarea").input_value() == f"{WORDS} and then left"
    wait_for_draft(page, f"{WORDS} and then left")
    numbers = [int(draft["number"]) for draft in shown_drafts(page)]
    assert numbers == sorted(set(numbers))
    prompts = [draft["prompt"] for draft in shown_drafts(page)]
    assert prompts == sorted(prompts, key=len)


def test_generate_makes_the_video_with_the_seed_of_the_draft_and_hides_the_draft(visit):
    page = visit()
    turn_on(page)
    type_prompt(page, "a blue square")
    wait_for_draft(page, "a blue square")
    seed = shown_drafts(page)[-1]["seed"]
    job = made(page, "a blue square")
    assert page.locator(".stage .facts dd").first.inner_text() == seed
    assert not page.locator("#draft .draft").is_visible()
    page.locator("#prompt textarea").press_sequentially(" falls")
    wait_for_draft(page, "a blue square falls")
    page.locator(".stage video").wait_for(state="hidden")
    page.locator("[data-draft-hide]").click()
    page.locator(".stage video").wait_for()
    assert page.locator(".stage").get_attribute("data-job") == job and not page.locator("#draft .draft").is_visible()
    page.locator('#views [data-view="library"]').click()
    page.locator("#library-grid li").first.wait_for()
    assert page.locator("#library-grid li").count() == 1


def test_the_switch_works_with_the_keyboard_and_stays_on_after_a_reload(visit):
    page = visit()
    page.locator("#prompt textarea").focus()
    page.keyboard.press("Alt+i")
    assert page.locator("#instant input").is_checked()
    page.reload()
    ready(page)
    wait_until(page, "document.querySelector('#instant input').checked")
    page.evaluate(WATCH)
    page.locator("#examples .gallery-item").first.click()
    wait_until(page, "drafts.length > 0")
    page.locator("#instant input").focus()
    page.keyboard.press("Space")
    assert not page.locator("#draft .draft").is_visible()
    page.reload()
    ready(page)
    assert not page.locator("#instant input").is_checked()


def test_a_draft_waits_for_the_video_of_another_visitor_and_only_its_own_page_shows_it(visit, close_gate):
    gate, page, other = close_gate("a held video"), visit(), visit()
    turn_on(page)
    other.evaluate(WATCH)
    type_prompt(page, "a first square")
    wait_for_draft(page, "a first square")
    other.locator("#prompt textarea").fill("a held video")
    other.locator("#generate").click()
    gate.wait()
    type_prompt(page, "a second square")
    page.locator("#instant-result .hint", has_text="Drafts wait").wait_for()
    assert page.locator(IMAGE).get_attribute("alt") == "a first square"  # the last draft stays
    gate.open()
    wait_for_draft(page, "a second square")
    assert shown_drafts(other) == [] and page.locator(".queue li").count() == 0


def test_a_slider_that_rests_requests_a_draft_and_a_hidden_tab_waits(visit):
    page, asked = visit(), []
    turn_on(page)
    type_prompt(page, "a green square")
    wait_for_draft(page, "a green square")
    page.on("request", lambda request: asked.append(request) if '"what":"draft"' in (request.post_data or "") else None)
    page.locator("#guidance input[type=range]").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    wait_until(page, "drafts.length > 1")
    assert len(asked) == 1
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.locator("#prompt textarea").press_sequentially(" sleeps")
    page.wait_for_timeout(1500)
    assert len(asked) == 1 and page.locator("#instant input").is_checked()
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    wait_for_draft(page, "a green square sleeps")


def test_a_phone_shows_the_draft_above_the_prompt_in_chinese(chromium, studio):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, locale="zh-CN")
    page = context.new_page()
    page.goto(studio.url)
    ready(page)
    turn_on(page)
    type_prompt(page, "a yellow square")
    wait_for_draft(page, "a yellow square")
    image, field = page.locator(IMAGE).bounding_box(), page.locator("#prompt").bounding_box()
    assert image["y"] >= 0 and image["y"] + image["height"] <= field["y"] and image["width"] > 300
    assert page.locator("#draft b").inner_text() == "草稿" and "即时" in page.locator("#instant").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    context.close()


def test_after_the_death_of_the_worker_drafts_continue(visit, studio, close_gate):
    gate, page = close_gate("a held square", "draft 2"), visit()
    turn_on(page)
    type_prompt(page, "a last square")
    wait_for_draft(page, "a last square")
    # Set at once: on a slow machine, typing pauses, and a draft of an unfinished prompt would pass the gate.
    page.locator("#prompt textarea").fill("a held square")
    gate.wait()
    worker = next(process for process in _children() if b"backend.workers.main" in process[1])
    os.kill(worker[0], signal.SIGKILL)
    assert page.locator(IMAGE).get_attribute("alt") == "a last square" and page.locator("#instant input").is_checked()
    gate.open()  # the new worker can now complete the draft
    wait_for_draft(page, "a held square")


def _children() -> list[tuple[int, bytes]]:
    """Return the process id and the command of each process below this process."""
    parents, commands = {}, {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat, open(f"/proc/{name}/cmdline", "rb") as command:
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
                commands[int(name)] = command.read()
        except OSError:
            continue  # the process has just ended
    below = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in below} - below:
        below |= more
    return [(process, commands[process]) for process in sorted(below - {os.getpid()})]


@pytest.fixture(scope="module")
def without_drafts(tmp_path_factory):
    with _serving("fake", tmp_path_factory.mktemp("plain"), more=["--no-instant"]) as server:
        yield _studio("fake", server)


def test_an_operator_can_turn_drafts_off(chromium, without_drafts):
    page = chromium.new_page()
    page.goto(without_drafts.url)
    ready(page)
    assert not page.locator("#instant").is_visible()
    page.evaluate("studio.act('instant', 'draft', {value: '1'})")
    page.wait_for_timeout(1000)
    assert page.locator("#instant-result [data-answer]").count() == 0
    page.close()
