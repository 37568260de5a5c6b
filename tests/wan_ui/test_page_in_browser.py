"""Tests of the whole page in a real Chromium: keys, phones, languages, the System view."""

import re

import pytest

from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.wan_ui.steps import held, rest, wait_until

pytestmark = pytest.mark.browser


def test_keys_are_explained_and_views_have_theirs(page):
    page.keyboard.press("?")
    page.locator("#help[open]").wait_for()
    assert "Generate" in page.locator("#help").inner_text()
    page.keyboard.press("Escape")
    page.locator("#help[open]").wait_for(state="detached")
    page.keyboard.press("Alt+q")
    page.locator("#queue").wait_for(state="hidden")
    page.keyboard.press("Alt+q")
    page.locator("#queue").wait_for(state="visible")
    page.locator("#prompt textarea").fill("what? 1, 2.")
    page.locator("#prompt textarea").press("?")
    assert page.locator("#help[open]").count() == 0


def test_a_page_on_which_nothing_happens_asks_for_no_animation_frames(page):
    """Each animation frame makes the browser draw the page again. Gradio's own frames are not counted."""
    rest(page)
    page.evaluate("""() => {
      const ask = window.requestAnimationFrame;
      window.ours = 0;
      window.requestAnimationFrame = draw => {
        ours += !new Error().stack.includes('/assets/');
        return ask(draw);
      };
    }""")
    page.wait_for_timeout(500)
    assert page.evaluate("ours") == 0


def test_the_system_panel_tells_of_the_machine(page):
    page.keyboard.press("Alt+7")
    page.locator(".system").wait_for()
    told = page.locator(".system").inner_text()
    assert "Square:0" in told and re.search(r"gradio\s+6", told) and re.search(r"Free disk space\s+[\d.]+ GB", told)
    report = page.locator("[data-copy-text]").get_attribute("data-copy-text")
    assert "Square:0" in report and str(PROJECT_FOLDER) not in report


@pytest.mark.parametrize("is_dark", [False, True])
def test_gradios_variables_have_the_values_of_the_tokens(page, is_dark):
    page.evaluate("isDark => document.body.classList.toggle('dark', isDark)", is_dark)
    read = "names => names.map(name => getComputedStyle(document.querySelector('#prompt textarea')).getPropertyValue(name))"
    gradios = page.evaluate(read, ["--input-background-fill", "--input-border-color", "--button-secondary-background-fill"])
    tokens = page.evaluate(read, ["--field", "--field-line", "--button"])
    page.evaluate("document.body.classList.remove('dark')")
    assert gradios == tokens and all(tokens)


def test_every_view_fits_a_phone(visit):
    page = visit(width=390, height=844)
    for view in ("create", "compare", "library", "system"):
        page.locator(f'#views [data-view="{view}"]').click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        page.locator("#queue-toggle").click()
        page.locator("#queue").wait_for(state="visible")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        assert page.locator("#queue").bounding_box()["width"] > 300
        page.locator("#queue-toggle").click()
        page.locator("#queue").wait_for(state="hidden")


def test_a_chinese_browser_reads_chinese(chromium, studio):
    context = chromium.new_context(locale="zh-CN", viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(studio.url)
    page.locator("#views", has_text="资料库").wait_for()
    assert page.locator("#generate").inner_text().strip() == "生成"
    page.locator(".stage .title", has_text="还没有视频").wait_for()
    wait_until(page, "document.querySelector('#length input').value.includes('帧')")
    wait_until(page, "document.querySelector('#preset input').value.includes('演示模型')")
    page.locator("#examples button", has_text="红色圆形").click()
    wait_until(page, "document.querySelector('#prompt textarea').value.startsWith('a red circle')")
    page.locator("#prompt textarea").fill("")
    page.locator("#queue", has_text="队列").wait_for()
    page.locator("#generate").click()
    wait_until(page, "document.querySelector('#prompt-note .note') && !document.querySelector('#prompt-note .note').hidden")
    page.locator('#views [data-view="live"]').click()
    first = page.locator("#live-prompt")
    first.wait_for(state="visible")
    preset = load_preset(page.locator("#live-preset").input_value())
    assert (first.input_value(), first.get_attribute("placeholder")) == ("", preset.words("zh").examples[0])
    page.locator("#live-start").click()
    wait_until(page, "!document.querySelector('#live-stop').hidden")
    assert first.input_value() == preset.examples[0]
    page.locator("#live-stop").click()
    wait_until(page, "!document.querySelector('#live-start').hidden")
    context.close()


def test_a_page_whose_news_were_refused_asks_for_them_again(chromium, studio):
    refused, answered, context = [], [], chromium.new_context()
    page = context.new_page()

    def refuse_the_first(route):
        (answered if refused else refused).append(route.request.url)
        route.continue_() if answered else route.fulfill(status=502)

    page.route("**/studio/changes", refuse_the_first)
    page.goto(studio.url)
    held(page, refused)
    held(page, answered)
    context.close()


def test_a_page_whose_news_stop_asks_for_them_again(chromium, studio):
    held_back, answered, context = [], [], chromium.new_context()
    page = context.new_page()

    def hold_the_first(route):  # as after the network failed
        (answered if held_back else held_back).append(route)
        if answered:
            route.continue_()

    page.route("**/studio/changes", hold_the_first)
    page.clock.install()
    page.goto(studio.url)
    held(page, held_back)
    page.clock.fast_forward(30_000)
    assert not answered
    page.clock.fast_forward(20_000)
    held(page, answered)
    context.close()


def test_a_page_that_another_tab_tells_nothing_asks_itself(chromium, studio):
    asked, context = [], chromium.new_context()
    other = context.new_page()
    other.goto(f"{studio.url}healthz")
    other.evaluate("navigator.locks.request('studio-changes', () => new Promise(() => {})), true")
    page = context.new_page()
    page.route("**/studio/changes", lambda route: (asked.append(route), route.continue_()))
    page.clock.install()
    page.goto(studio.url)
    while not page.evaluate("navigator.locks.query().then(locks => locks.pending.length)"):
        page.wait_for_timeout(50)
    assert not asked
    page.clock.fast_forward(50_000)
    held(page, asked)
    wait_until(page, "document.querySelector('.status')?.dataset.state === 'ready'")
    context.close()
