"""Tests of a storyboard in a real Chromium: edit, move, split, duplicate, generate, play, cut and reload its shots."""

import json

import pytest

from backend.media.video import read_facts, read_request
from tests.clip_files import run_ffmpeg
from tests.wan_ui.steps import again, wait_until

pytestmark = pytest.mark.browser


def film(page) -> dict:
    return json.loads(page.locator("#shots textarea").input_value() or "{}")


def rows(page) -> list[dict]:
    return film(page).get("shots", [])


def prompts(page) -> list[str]:
    return [row["prompt"] for row in rows(page)]


def begin(page, *words: str) -> None:
    """Switch the storyboard on, with one shot of one second for each prompt."""
    page.locator("#steps input[type=number]").fill("2")
    page.locator(".shots-switch").click()
    for index, text in enumerate(words):
        if index > 1:
            page.locator('[data-shot="add"]').click()
        choose(page, index)
        page.locator(".shot-detail textarea").fill(text)
        page.locator(".shot-detail [name=seconds]").fill("1")


def choose(page, index: int) -> None:
    page.locator(".film-block").nth(index).click()


def press(page, what: str) -> None:
    page.locator(f'.shots [data-shot="{what}"]').click()


def state(page) -> str:
    return page.locator(".film-state").inner_text()


def until_made(page, made: list[bool]) -> None:
    wait_until(page, "made => [...document.querySelectorAll('.film-block')].map(one => one.dataset.made).join() === made.join()",
          arg=[str(one).lower() for one in made])  # fmt: skip


def stage_job(page) -> str:
    return page.locator(".stage").get_attribute("data-job")


def generated(page, button: str = "#generate") -> str:
    """Press a button that generates a video, wait for its end, and return the job's id."""
    before = stage_job(page)
    page.locator(button).click()
    wait_until(page, "before => document.querySelector('.stage').dataset.job !== before", arg=before)
    wait_until(page, "document.querySelector('.stage').dataset.phase === 'finished'")
    return stage_job(page)


@pytest.fixture(scope="module")
def music(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "music.wav"
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=1.2", str(path))
    return path


def test_two_shots_are_made_reordered_given_a_sound_cut_and_opened(visit, music, tmp_path):
    page = visit()
    page.locator("#prompt textarea").fill("a red square")
    begin(page, "a red square", "a second square")
    assert not page.locator("#prompt").is_visible() and [row["seconds"] for row in rows(page)] == ["1", "1"]
    choose(page, 0)
    start = page.locator(".shot-detail [name=start]")
    assert start.input_value() == "cut" and start.locator("[value=on]").is_disabled(), "the first shot continues no other"
    choose(page, 1)
    assert start.input_value() == "on" and start.locator("[value=on]").is_enabled()
    start.select_option("cut")
    page.locator(".shot-detail [name=fade]").fill("0.25")
    generated(page)
    until_made(page, [True, True])
    assert [("job" in row, row["num_frames"]) for row in rows(page)] == [(True, 17)] * 2 and "without the model" in state(page)
    page.locator(".film-block").nth(1).focus()
    page.keyboard.press("Alt+ArrowLeft")
    assert prompts(page) == ["a second square", "a red square"]
    page.locator(".film-track input[type=file]").set_input_files(music)
    wait_until(page, "document.querySelector('.film-lane').offsetHeight > 0")
    page.locator("[name=track_start]").fill("0.5")
    choose(page, 1)
    assert page.locator(".shot-detail [name=start]").input_value() == "cut", "it was made from nothing before it"
    page.locator(".shot-detail [name=fade]").fill("0.5")
    until_made(page, [True, True])
    job = generated(page)
    with page.expect_download() as saved:
        page.locator("#download").click()
    path = tmp_path / "film.mp4"
    saved.value.save_as(path)
    facts, request = read_facts(path), read_request(path)
    assert (facts.width, facts.height) == (96, 96) and facts.seconds == pytest.approx((17 + 17 - 8) / 16, abs=0.05)
    assert [shot.prompt for shot in request.shots] == ["a second square", "a red square"] and request.track_start == 0.5
    assert page.locator(".stage .player").get_attribute("data-sound") == "true"
    page = again(page)
    wait_until(page, "document.querySelectorAll('.film-block').length === 2")
    wait_until(page, "job => document.querySelector('.stage').dataset.job === job", arg=job)
    assert prompts(page) == ["a second square", "a red square"] and all("job" in row for row in rows(page))
    page.locator(".shots-switch").click()
    assert rows(page) == [] and page.locator("#prompt").is_visible()


def test_what_continues_from_a_changed_shot_is_said_before_it_is_regenerated(visit):
    page = visit()
    begin(page, "a red square", "a second square", "a third square")
    generated(page)
    until_made(page, [True, True, True])
    assert [row.get("trim") for row in rows(page)] == [None, [5 / 16, 17 / 16], [5 / 16, 17 / 16]]
    choose(page, 1)
    page.locator(".shot-detail textarea").fill("another square")
    until_made(page, [True, False, False])
    assert state(page).startswith("Shots to generate: 2, 3.") and state(page).endswith("because the previous shot changed: 3.")
    choose(page, 2)
    press(page, "keep")
    until_made(page, [True, False, True])
    choose(page, 1)
    before = [row.get("job") for row in rows(page)]
    page.evaluate("document.querySelector('[data-shot=alone]').id = 'alone'")
    generated(page, "#alone")
    until_made(page, [True, True, True])
    after = [row.get("job") for row in rows(page)]
    assert after[0] == before[0] and after[2] == before[2] and after[1] is not None and len(rows(page)) == 3
    choose(page, 0)
    press(page, "split")
    press(page, "double")
    assert [row["trim"] for row in rows(page)[:2]] == [[0, 9 / 16], [9 / 16, 17 / 16]] and len(rows(page)) == 5
    until_made(page, [True, True, True, True, True])
    press(page, "remove")
    job = generated(page)
    assert page.locator(".stage .facts").inner_text().count("Shots") == 1
    page.locator('[data-act="fill:use"]').first.click()
    wait_until(page, "name => document.querySelector('#shots textarea').value.includes(name)", arg=f"{job}/3")
    assert [row["job"] for row in rows(page)] == [f"{job}/{number}" for number in (1, 1, 2, 3)]


@pytest.mark.parametrize("width", [pytest.param(1440, marks=pytest.mark.slow), 390])
def test_it_is_played_before_it_is_made_and_fits_a_phone(width, visit, music, picture):
    page = visit(width=width, height=844)
    begin(page, "a red square", "a second square", "a third square")
    choose(page, 2)
    press(page, "up")
    assert prompts(page) == ["a red square", "a third square", "a second square"]
    first, last = (page.locator(".film-block").nth(index).bounding_box() for index in (1, 2))
    page.mouse.move(first["x"] + 20, first["y"] + 30)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] / 2, last["y"] + 30, steps=5)
    page.mouse.up()
    assert prompts(page) == ["a red square", "a second square", "a third square"]
    page.locator(".film-block").nth(2).focus()
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Enter")
    page.locator(".shot-detail [name=start]").select_option("image")
    page.locator(".shot-detail input[name=image]").set_input_files(picture)
    wait_until(page, "document.querySelector('.film-block[aria-pressed=true] img')")
    assert rows(page)[1]["image"]
    page.locator(".film-track input[type=file]").set_input_files(music)
    wait_until(page, "document.querySelector('.film-lane canvas').width > 30")
    press(page, "play")
    wait_until(page, "parseFloat(document.querySelector('.film-bar output').textContent) > 0.3")
    assert page.locator(".film-screen p").inner_text() == "1 a red square"
    press(page, "pause")
    press(page, "close")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    press(page, "silence")
    assert "track" not in film(page)


def test_a_shot_without_words_and_a_sound_that_is_none_are_said_beside_the_film(visit, tmp_path):
    page = visit()
    page.locator(".shots-switch").click()
    page.locator("#generate").click()
    page.locator("#prompt-note .note:not([hidden])").wait_for()
    assert "Shot 1 has an empty prompt" in page.locator("#prompt-note").inner_text()
    begin_again = page.locator(".shot-detail textarea")
    for index in (0, 1):
        choose(page, index)
        begin_again.fill("a red square")
    (tmp_path / "text.wav").write_text("no sound")
    page.locator(".film-track input[type=file]").set_input_files(tmp_path / "text.wav")
    wait_until(page, "document.querySelector('.film-lane').offsetHeight > 0")
    page.locator("#generate").click()
    wait_until(page, "document.querySelector('#prompt-note').innerText.includes('must be an audio file')")


def test_a_finished_video_becomes_a_shot_that_is_made(visit):
    page = visit()
    page.locator("#steps input[type=number]").fill("2")
    page.locator("#prompt textarea").fill("a red square moving right")
    job = generated(page)
    page.locator(".stage .actions [data-take]").click()
    until_made(page, [True])
    assert [(row["job"], row["num_frames"]) for row in rows(page)] == [(job, 17)]
    assert page.locator(".shots-switch input").is_checked()
    page.locator('[data-view="library"]').first.click()
    page.locator(f'#library-grid [data-job="{job}"]').first.click()
    page.locator("#library-detail [data-take]").click()
    until_made(page, [True, True])
    assert page.locator("#prompt").is_hidden() and page.locator(".film-block").first.is_visible(), "the timeline is seen"
    cut = generated(page)
    assert cut != job and page.locator(".stage .facts").inner_text().count("Shots") == 1
