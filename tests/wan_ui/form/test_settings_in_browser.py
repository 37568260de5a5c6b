"""Tests of restored settings in a real Chromium: user presets, links, the last session, a suggested prompt."""

import json
import shutil

import pytest

from tests.wan_ui.steps import again, made, rest, wait_until

pytestmark = pytest.mark.browser


def test_presets_of_ones_own(visit, tmp_path):
    page = visit()
    page.locator("#steps input[type=number]").fill("7")
    page.locator("#steps input[type=number]").blur()
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("My look")
    page.locator('[data-act="own:save"]').click()
    page.locator('[data-act="own:load"]', has_text="My look").wait_for()
    with page.expect_download() as download:
        page.locator("#own-menu a[download]").click()
    kept = tmp_path / "presets.json"
    shutil.copy(download.value.path(), kept)
    assert json.loads(kept.read_text())["presets"]["My look"]["steps"] == 7
    page = again(page)
    page.locator("#steps input[type=number]").fill("20")
    page.locator("#steps input[type=number]").blur()
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:load"]', has_text="My look").click()
    wait_until(page, "document.querySelector('#steps input[type=number]').value === '7'")
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("Better")
    page.locator('[data-act="own:rename"]').click()
    page.locator('[data-act="own:load"]', has_text="Better").wait_for()
    page.locator('[data-act="own:delete"]').click()
    page.locator('[data-act="own:load"]').wait_for(state="detached")
    page.locator("#own-file").set_input_files(kept)
    page.locator('[data-act="own:load"]', has_text="My look").wait_for()
    (tmp_path / "bad.json").write_text('{"presets": {"x": {"preset": "wan-tiny", "image": "/etc/passwd"}}}')
    page.locator("#own-file").set_input_files(tmp_path / "bad.json")
    page.locator('#message .message.shown[data-bad="true"]').wait_for()


def test_a_link_opens_the_studio_with_its_settings(visit):
    page, other = visit(), visit()
    page.locator("#prompt textarea").fill("a shared idea")
    page.locator("#steps input[type=number]").fill("9")
    page.locator("#steps input[type=number]").blur()
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:link"]').click()
    wait_until(page, "document.querySelector('#message input')?.value.includes('?settings=')")
    rest(other)
    other.goto(page.locator("#message input").input_value())
    wait_until(other, "document.querySelector('#prompt textarea')?.value === 'a shared idea'")
    assert other.locator("#steps input[type=number]").input_value() == "9"


def test_more_settings_say_what_reusing_steps_by_plan_costs_and_a_link_has_it(visit):
    page, other = visit(), visit()
    page.locator("#more > button").first.click()
    page.locator("#mag-cache").wait_for()
    page.locator("#mag-cache > .about").click()
    assert "2.8 times faster, at 21.8 to 24.4 dB" in page.locator("#mag-cache > .description").inner_text()
    page.locator("#mag-cache input[type=number]").fill("0.12")
    page.locator("#mag-cache input[type=number]").blur()
    page.locator("#prompt textarea").fill("a planned video")
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:link"]').click()
    wait_until(page, "document.querySelector('#message input')?.value.includes('?settings=')")
    rest(other)
    other.goto(page.locator("#message input").input_value())
    wait_until(other, "document.querySelector('#prompt textarea')?.value === 'a planned video'")
    other.locator("#more > button").first.click()
    assert other.locator("#mag-cache input[type=number]").input_value() == "0.12"


def test_the_last_sessions_settings_come_back(visit):
    page = visit()
    made(page, "a remembered prompt", 5)
    page.locator("#history", has_text="a remembered prompt").wait_for(state="attached")  # stored with the history
    page = again(page)
    wait_until(page, "document.querySelector('#prompt textarea')?.value === 'a remembered prompt'")
    assert page.locator("#steps input[type=number]").input_value() == "5"
    assert page.locator("#seed-random input").is_checked()
    page.locator("#history summary").click()
    assert "a remembered prompt" in page.locator("#history").inner_text()


def test_a_suggestion_shows_what_it_changes_waits_and_is_taken_back(page):
    page.locator("#prompt textarea").fill("a cat <b>asleep</b>")
    page.locator("#rewrite").click()
    page.locator(".suggestion ins", has_text="striped").wait_for()
    assert page.locator(".suggestion b").count() == 0
    assert page.locator("#prompt textarea").input_value() == "a cat <b>asleep</b>"
    page.locator(".suggestion [data-act]").click()
    wait_until(page, "document.querySelector('#prompt textarea').value === 'a striped cat <b>asleep</b>'")
    page.locator(".suggestion.used [data-act]").click()
    wait_until(page, "document.querySelector('#prompt textarea').value === 'a cat <b>asleep</b>'")
    page.locator(".suggestion").wait_for(state="detached")


def test_a_suggestion_is_seen_as_it_is_written_and_can_be_stopped(page):
    page.locator("#prompt textarea").fill("a cat that sleeps for ever")
    page.locator("#rewrite").click()
    page.locator(".suggestion[aria-busy=true]", has_text="a striped cat that sleeps for ever").wait_for()
    page.locator('.suggestion [data-act="rewrite:stop"]').click()
    page.locator(".suggestion").wait_for(state="detached")
    page.locator("#prompt textarea").fill("a cat")
    page.locator("#rewrite").click()
    page.locator(".suggestion ins", has_text="striped").wait_for()


def test_what_is_far_too_long_is_refused_in_words(page, tmp_path):
    page.locator("#prompt textarea").focus()
    page.keyboard.insert_text("a" * 1_200_000)
    page.locator("#generate").click()
    page.locator("#prompt-note", has_text="characters and must have at most").wait_for()
    page.locator("#prompt textarea").fill("a red square")
    (tmp_path / "presets.json").write_text('{"format": "' + "圆" * 900_000)
    page.set_input_files("#own-file", tmp_path / "presets.json")
    page.locator("#message .message.shown", has_text="contains no presets of this studio").wait_for()
