"""Videos side by side in a real Chromium."""

import re
import shutil

import pytest

from backend.media.tiles import LABEL_HEIGHT
from backend.media.video import read_facts
from tests.wan_ui.steps import held, made, rest, wait_until

pytestmark = pytest.mark.browser


def test_four_are_compared_together(visit, studio, tmp_path):
    page, stranger = visit(), visit()
    page.locator("#prompt textarea").fill("a square to compare")
    page.keyboard.press("Alt+4")
    page.locator("#compare-values input, #compare-values textarea").fill("1, 2, 3, 4")
    page.locator("#compare-start").click()
    page.locator('.compare[data-count="4"]').wait_for()
    page.locator('.compare[data-done="4"]').wait_for()
    times = "[...document.querySelectorAll('.compare video')].map(video => video.currentTime)"
    wait_until(
        page, f"(() => {{ const t = {times}; return t.every(time => time > 0.1) && Math.max(...t) - Math.min(...t) < 0.15 }})()"
    )
    page.locator("[data-compare=play]").click()
    page.locator("[data-compare=scrub]").fill("500")
    wait_until(page, f"(() => {{ const t = {times}; return t.every(time => Math.abs(time - t[0]) < 0.07) && t[0] > 0.4 }})()")
    assert re.search(r"seed\s+1\s+2\s+3\s+4", page.locator(".differences").inner_text())
    page.locator("[data-compare=wipe]").check()
    page.locator('.compare[data-wipe="true"] figure[data-side="right"]').wait_for()
    assert page.locator(".compare figure:visible").count() == 2
    with page.expect_download() as download:
        page.locator("#compare-export").click()
    shutil.copy(download.value.path(), tmp_path / "tiled.mp4")
    facts = read_facts(tmp_path / "tiled.mp4")
    assert facts.width >= 2 * 96 and facts.height >= 2 * 96
    page.locator('[data-act="compare:link"]').click()
    wait_until(page, "document.querySelector('#message input')?.value.includes('?compare=')")
    link = page.locator("#message input").input_value()
    own = page.context.new_page()
    own.goto(link)
    own.locator('.compare[data-done="4"]').wait_for()
    rest(stranger)
    stranger.goto(link)
    wait_until(stranger, "document.querySelector('#compare-values input, #compare-values textarea')?.value === '1, 2, 3, 4'")
    assert stranger.locator(".compare video").count() == 0
    assert stranger.locator("#prompt textarea").input_value() == "a square to compare"
    export = f"{studio.url}studio/compare/{link.partition('compare=')[2]}.mp4"
    assert stranger.request.get(export).status == 404 and page.request.get(export).status == 200


def test_videos_that_end_before_the_page_knows_their_comparison_are_shown(visit):
    page, answers = visit(), []

    def hold_start(route) -> None:
        is_start = "11, 12" in (route.request.post_data or "")
        answers.append((route, route.fetch())) if is_start else route.fallback()

    page.route("**/run/predict", hold_start)
    page.locator("#prompt textarea").fill("a square that ends early")
    page.keyboard.press("Alt+4")
    page.locator("#compare-values input, #compare-values textarea").fill("11, 12")
    page.locator("#compare-start").click()
    wait_until(page, "document.querySelectorAll('.queue li[data-state=\"finished\"]').length >= 2")
    rest(page)  # the view was updated after the last change, still without the comparison
    held(page, answers)
    route, answer = answers[0]
    route.fulfill(response=answer)
    page.locator('.compare[data-done="2"]').wait_for()


def test_videos_that_end_while_an_update_is_late_are_shown(visit, close_gate):
    page, late = visit(), []
    prompt = "a square behind a slow network"
    gate = close_gate(prompt)
    page.locator("#prompt textarea").fill(prompt)
    page.keyboard.press("Alt+4")
    page.locator("#compare-values input, #compare-values textarea").fill("21, 22")
    page.locator("#compare-start").click()
    page.locator('.compare[data-count="2"]').wait_for()
    gate.wait()

    def hold_update(route) -> None:
        is_first_update = not late and '"what":"tick"' in (route.request.post_data or "")
        late.append((route, route.fetch())) if is_first_update else route.fallback()

    page.route("**/run/predict", hold_update)
    page.evaluate("studio.act('tick', 'tick')")  # an update while no video is finished
    held(page, late)
    gate.open()
    wait_until(page, "document.querySelectorAll('.queue li[data-state=\"finished\"]').length === 2")
    page.wait_for_timeout(2000)  # the page asks for updates every 1.5 s
    route, answer = late[0]
    route.fulfill(response=answer)
    page.locator('.compare[data-done="2"]').wait_for()


def test_a_grid_of_two_settings_has_its_labels_and_is_saved_as_one_video(visit, tmp_path):
    page, stranger = visit(), visit()
    page.locator("#prompt textarea").fill("a square in a grid")
    page.keyboard.press("Alt+4")
    page.locator("#compare-what input").click()
    page.locator('li[role=option][aria-label="Steps"]').click()
    page.locator("#compare-values input, #compare-values textarea").fill("1, 2, 3")
    page.locator("#compare-also input").click()
    page.locator('li[role=option][aria-label="Seed"]').last.click()
    page.locator("#compare-also-values input, #compare-also-values textarea").fill("7, 8")
    page.locator("#compare-start").click()
    page.locator('.compare[data-done="6"][data-grid="true"]').wait_for()
    assert [" ".join(sorted(label.split(" · "))) for label in page.locator(".compare figcaption").all_inner_texts()] == [
        f"seed {seed} steps {steps}" for seed in (7, 8) for steps in (1, 2, 3)
    ]
    with page.expect_download() as download:
        page.locator("#compare-export").click()
    shutil.copy(download.value.path(), tmp_path / "grid.mp4")
    facts = read_facts(tmp_path / "grid.mp4")
    assert facts.width == 3 * 384 and facts.height == 2 * (384 + LABEL_HEIGHT)
    page.locator('[data-act="compare:link"]').click()
    wait_until(page, "document.querySelector('#message input')?.value.includes('?compare=')")
    rest(stranger)
    stranger.goto(page.locator("#message input").input_value())
    wait_until(stranger, "document.querySelector('#compare-also-values input, #compare-also-values textarea')?.value === '7, 8'")
    assert stranger.locator("#compare-values input, #compare-values textarea").input_value() == "1, 2, 3"


def test_library_videos_are_compared_too(visit):
    page = visit()
    made(page, "first of two")
    made(page, "second of two", 3)
    page.keyboard.press("Alt+5")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")
    for number in range(2):
        page.locator("#library-grid .card").nth(number).focus()
        page.keyboard.press("c")
        if number == 0:
            wait_until(page, "document.querySelector('#message').innerText.includes('selected')")
    page.locator('.compare[data-done="2"]').wait_for()
    assert "steps" in page.locator(".differences").inner_text()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), pytest.param(390, 844, marks=pytest.mark.slow)])
def test_the_hint_can_be_read_whole_and_the_view_fills_the_page(visit, width, height):
    page = visit(width=width, height=height)
    page.locator('#views [data-view="compare"]').click()
    page.locator("#compare").wait_for(state="visible")
    needed, there = page.locator("#compare-values").evaluate("""block => {
      const field = block.querySelector('input, textarea'), style = getComputedStyle(field);
      const pen = document.createElement('canvas').getContext('2d');
      pen.font = `${getComputedStyle(field, '::placeholder').fontSize} ${style.fontFamily}`;
      const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
      return [pen.measureText(field.placeholder).width, field.clientWidth - padding];
    }""")
    assert needed <= there
    box = page.locator("#compare-column").bounding_box()
    assert box["y"] + box["height"] >= height - 1, "no empty band below it"
