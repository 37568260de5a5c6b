"""Tests that axe-core reports no violation in any view, wide and narrow, light and dark, in English and Chinese.

One page visits all views, and axe-core checks each state. axe-core is part of the package axe-playwright-python. It cannot
decide some rules and reports them as `incomplete`: colours over images, which `test_styles.py` computes, and captions, which
generated videos lack.
"""

from importlib.resources import files

import pytest

from tests.clip_files import run_ffmpeg
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.steps import made, wait_until

pytestmark = pytest.mark.browser
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CHECK = """([rules, isOnlyColours]) => axe.run(document, {
  resultTypes: ['violations'], runOnly: isOnlyColours ? {type: 'rule', values: ['color-contrast']} : {type: 'tag', values: rules},
}).then(({violations}) => violations.flatMap(({id, nodes}) => nodes.map(node => `${id}: ${node.html.slice(0, 200)}
  ${node.failureSummary.replaceAll('\\n', ' ')}`)))"""
STILL = "document.getAnimations().every(one => one.playState !== 'running' || one.effect.getTiming().iterations === Infinity)"
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
OFFERED = ("wan2.1-vace-1.3b-480p", "ltx-2.3-704p", "wan-tiny-animate")
"""Presets with which Edit has all its modes."""


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir, more=[word for name in OFFERED for word in ("--offer", name)]) as server:
        yield _studio("fake", server)


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "holiday.mp4"
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=160x120:r=30:d=1", "-c:v", "libx264", "-pix_fmt", "yuv420p", str(path))
    return path


def check(page, state: str, sizes=(WIDE, NARROW), themes=(False, True)) -> None:
    """Check this state of the page, by default in both themes. The dark theme differs in its colours only."""
    found = []
    page.evaluate("() => document.querySelector('.stage video')?.pause()")
    for size in sizes:
        page.set_viewport_size(size)
        page.evaluate("isOpen => document.querySelector('#workspace').dataset.queue = isOpen ? 'open' : 'closed'", size == WIDE)
        for is_dark in themes:
            page.evaluate("isDark => document.body.classList.toggle('dark', isDark)", is_dark)
            if not page.evaluate("'axe' in window"):
                page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
            wait_until(page, STILL)
            name = f"{state}, {size['width']} wide, {'dark' if is_dark else 'light'}"
            found += [f"{name}: {one}" for one in page.evaluate(CHECK, [RULES, is_dark])]
    page.set_viewport_size(WIDE)
    page.evaluate("document.body.classList.remove('dark')")
    page.evaluate("document.querySelector('#workspace').dataset.queue = 'open'")
    assert found == [], "\n".join(found)


def view(page, key: str) -> None:
    page.locator(f'#views [data-view="{key}"]').click()
    page.locator(f'#views [data-view="{key}"][aria-current="true"]').wait_for()


def begin(page) -> None:
    """Switch animations off, so that axe-core never sees a colour during a transition."""
    page.emulate_media(reduced_motion="reduce")
    view(page, "create")


def test_create(page):
    begin(page)
    check(page, "nothing made")
    page.locator("#prompt textarea").fill("")
    page.locator("#generate").click()
    page.locator("#prompt-note .note").wait_for()
    check(page, "an empty prompt", [WIDE])
    page.locator("#instant input").check()
    page.locator("#prompt textarea").fill("a draft of a red square")
    page.locator("#draft .draft:not([hidden])").wait_for()
    check(page, "an instant draft")
    page.locator("#instant input").uncheck()
    made(page, "a red square that hums")
    check(page, "a finished video")
    page.locator("#more > .label-wrap").click()
    page.locator("#negative-prompt").wait_for()
    check(page, "all settings")
    page.locator("#more > .label-wrap").click()
    page.locator("#tabs button[role=tab]").last.click()
    page.locator("#image-examples button").nth(1).click()
    page.locator("#crop-preview img").wait_for()
    check(page, "from an image", [WIDE])
    page.locator("#tabs button[role=tab]").first.click()


def test_menus_of_create(page):
    begin(page)
    page.locator("#preset input").click()
    page.locator("ul[role=listbox]").wait_for()
    check(page, "the list of models", [WIDE])
    page.keyboard.press("Escape")
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("Slow and careful")
    page.locator('[data-act="own:save"]').click()
    page.locator('[data-act="own:load"]').wait_for()
    check(page, "own presets", [WIDE])
    page.locator("#own-menu summary").click()
    page.locator(".batch-toggle").click()
    page.locator("#batch-table textarea").fill("prompt,seed\na red square,1\na blue square,2")
    page.locator("#batch-preview").click()
    page.locator(".batch-plan table").wait_for()
    check(page, "many videos", [WIDE])
    page.locator(".batch-toggle").click()
    page.locator("#help-toggle").click()
    check(page, "help", [WIDE])
    page.keyboard.press("Escape")


def test_a_video_that_is_being_made(page, close_gate):
    begin(page)
    close_gate("a held square")
    page.locator("#prompt textarea").fill("a held square")
    page.locator("#steps input[type=number]").fill("20")
    page.locator("#generate").click()
    page.locator('.stage[data-phase="denoising"]').wait_for()
    page.locator("#prompt textarea").fill("the next square")
    page.locator("#generate").click()
    page.locator('.queue li[data-state="queued"]').wait_for()
    check(page, "a running video and a queued one")
    page.locator('.queue li[data-state="queued"]').hover()
    page.locator('.queue li[data-state="queued"] [data-act="queue:cancel"]').click()
    page.locator("#stop").click()
    page.locator('.stage[data-phase="cancelled"]').wait_for()
    check(page, "a cancelled video", [WIDE])


def test_the_storyboard(page):
    begin(page)
    page.locator(".shots-switch").click()
    page.locator(".film-block").nth(1).click()
    check(page, "an empty shot")
    page.locator(".shot-detail textarea").fill("a blue square")
    check(page, "a shot", [WIDE])
    page.locator(".shots-switch").click()


def test_every_mode_of_edit(page, clip):
    begin(page)
    view(page, "edit")
    check(page, "no clip")
    page.locator("#edit-file").set_input_files(clip)
    page.locator(f'.edit[data-clip="{clip.name}"]').wait_for()
    page.locator(".edit details:not(.own)").evaluate_all("all => all.forEach(one => { one.open = true; })")
    for way in page.locator("[name=edit-way]").evaluate_all("all => all.map(one => one.value)"):
        page.locator(f'[name="edit-way"][value="{way}"]').check(force=True)
        page.locator(f'.edit[data-way="{way}"]').wait_for()
        check(page, way, [NARROW] if way == "paint" else [WIDE])


def test_compare(page):
    begin(page)
    page.locator("#prompt textarea").fill("a red square")
    view(page, "compare")
    check(page, "nothing to compare")
    page.locator("#compare-what input").click()
    page.locator('li[role=option][aria-label="Steps"]').click()
    page.locator("#compare-values input, #compare-values textarea").first.fill("1, 2")
    page.locator("#compare-start").click()
    page.locator('.compare[data-done="2"]').wait_for()
    check(page, "two videos")
    page.locator("[data-compare=wipe]").check()
    check(page, "two videos on top of each other", [WIDE])
    page.locator("[data-compare=wipe]").uncheck()


def test_the_library(page):
    begin(page)
    made(page, "a red square that hums")
    view(page, "library")
    page.locator("#library-grid li").first.click()
    page.locator("#library-detail video").wait_for()
    check(page, "a chosen video")
    page.locator("#projects summary").click()
    check(page, "projects", [WIDE])
    page.locator("#projects summary").click()


def test_live(page):
    begin(page)
    view(page, "live")
    check(page, "not started")
    page.locator(".live details:not(.own)").evaluate_all("all => all.forEach(one => { one.open = true; })")
    check(page, "settings")
    page.locator("#live-prompt").fill("a red square")
    page.locator("#live-start").click()
    page.locator("#live-stop").wait_for()
    wait_until(page, "document.querySelector('#live-canvas').dataset.frame >= 0")
    page.locator("#live-canvas").click()
    page.keyboard.down("ArrowRight")
    page.locator('.live [aria-pressed="true"]').wait_for()
    check(page, "a pressed key")
    page.keyboard.up("ArrowRight")
    page.locator("#live-stop").click()
    wait_until(page, "!document.querySelector('#live-start').hidden")


@pytest.mark.parametrize("key", ["models", "system"])
def test_models_and_system(page, key):
    begin(page)
    view(page, key)
    page.locator(f".{key}").wait_for()
    check(page, key)


def test_every_view_in_chinese(chromium, studio):
    context = chromium.new_context(locale="zh-CN", viewport=WIDE, reduced_motion="reduce")
    page = context.new_page()
    page.goto(studio.url)
    wait_until(page, "window.studio?.isOpen && document.querySelector('.status')?.dataset.state === 'ready'")
    assert page.locator("body").get_attribute("lang") == "zh"
    for key in page.locator("#views button").evaluate_all("all => all.map(one => one.dataset.view)"):
        view(page, key)
        check(page, f"{key} in Chinese", [WIDE], [False])
    context.close()


def test_the_page_names_the_language_of_its_words_where_the_visitors_is_another(chromium, studio):
    context = chromium.new_context(locale="fr-FR")
    page = context.new_page()
    page.goto(studio.url)
    page.locator("#views", has_text="Library").wait_for()
    assert page.evaluate("document.querySelector('#views').closest('[lang]').lang") == "en"
    context.close()
