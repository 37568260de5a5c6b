"""Tests of videos with audio on the stage, in a comparison and in the library, in a real Chromium."""

import shutil

import numpy as np
import pytest

from backend.media.sound import Sound, read_sound
from tests.wan_ui.steps import made, rest, wait_until
from wan_ui.i18n.english import ENGLISH

pytestmark = pytest.mark.browser

LOUDNESS = "(video => [video.muted, video.volume])(document.querySelector('.stage video'))"
REFUSING = """
  const play = HTMLMediaElement.prototype.play;
  HTMLMediaElement.prototype.play = function () {
    return this.muted ? play.call(this) : Promise.reject(new DOMException('no gesture', 'NotAllowedError'));
  };
"""
DRAWN = """(() => {
  const canvas = document.querySelector('.stage .wave'), pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const columns = [];
  for (let x = 0; x < canvas.width; x++) {
    let tall = 0;
    for (let y = 0; y < canvas.height; y++) tall += pixels[4 * (y * canvas.width + x) + 3] > 0;
    columns.push(tall);
  }
  return columns;
})()"""
CONTROLS = ".stage .wave, .stage [data-player=sound], .stage [data-player=volume], .stage .sound-download"


def is_pressed(page, wanted: bool) -> None:
    page.locator(f'.stage [data-player=sound][aria-pressed="{str(wanted).lower()}"]').wait_for()


def play_or_pause(page) -> None:
    page.locator(".stage [data-player=play]").click()


def test_a_video_with_sound_is_muted_until_it_is_turned_on_and_that_is_remembered(visit, tmp_path):
    page = visit()
    made(page, "a silent square")
    assert [one.is_visible() for one in page.locator(CONTROLS).all()] == [False] * 3
    made(page, "a square that hums")
    page.locator('.stage .player[data-wave="true"]').wait_for()
    assert [one.is_visible() for one in page.locator(CONTROLS).all()] == [True] * 4
    is_pressed(page, False)
    assert page.evaluate(LOUDNESS) == [True, 0.8]
    page.locator(".stage [data-player=sound]").click()
    page.locator(".stage [data-player=volume]").fill("40")
    is_pressed(page, True)
    assert page.evaluate(LOUDNESS) == [False, 0.4]
    made(page, "another that hums")
    wait_until(page, f"JSON.stringify({LOUDNESS}) === '[false,0.4]' && !document.querySelector('.stage video').paused")
    with page.expect_download() as download:
        page.locator(".stage .sound-download").click()
    assert download.value.suggested_filename.endswith(".wav")
    shutil.copy(download.value.path(), tmp_path / "sound.wav")
    assert Sound.read(tmp_path / "sound.wav").samples.shape == (2, round(17 / 16 * 24_000))
    page.add_init_script(REFUSING)
    rest(page)
    page.reload()
    page.locator('.stage [data-player=sound][data-refused="true"]').wait_for()
    assert page.evaluate(LOUDNESS) == [True, 0.4]
    assert page.locator(".stage [data-player=sound]").get_attribute("title") == ENGLISH.sound_refused
    wait_until(page, "!document.querySelector('.stage video').paused")
    page.keyboard.press("m")
    is_pressed(page, True)
    assert page.evaluate(LOUDNESS) == [False, 0.4] and page.locator(".stage [data-player=volume]").input_value() == "40"
    page.locator('#views [data-view="library"]').click()
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 3")
    assert page.locator("#library-grid .sound-mark").count() == 2
    wait_until(page, "document.querySelector('.stage video').paused")


def test_the_waveform_shows_the_sound_and_every_way_to_move_keeps_the_frame(page):
    made(page, "a square that hums and goes")
    page.locator('.stage .player[data-wave="true"]').wait_for()
    play_or_pause(page)
    wait_until(page, "document.querySelector('.stage video').paused")
    page.locator("[data-player=scrub]").fill("16")  # otherwise the line at the playing position hides a bar
    wait_until(page, f"(columns => columns.lastIndexOf(Math.max(...columns)) > 0.9 * columns.length)({DRAWN})")
    columns = np.array(page.evaluate(DRAWN))
    thirds = [part.max() for part in np.array_split(columns, 24)]
    assert thirds[4] > 2 * thirds[0] and thirds[4] > 2 * thirds[8], "it swells and fades"
    page.locator("[data-player=scrub]").fill("3")
    for key, frame in ((None, 3), (".", 4), (".", 5), (",", 4), (",", 3)):
        if key:
            page.keyboard.press(key)
        wait_until(page, f"document.querySelector('.player output').textContent === '{frame + 1} / 17'")
        shown = "(video => !video.seeking && Math.floor(16 * video.currentTime))(document.querySelector('.stage video'))"
        wait_until(page, f"{shown} === {frame}")
    page.locator("[data-player=scrub]").fill("15")
    page.evaluate("document.querySelector('.stage video').addEventListener('seeked', () => { window.hasLooped = true; })")
    wait_until(page, "!document.querySelector('.stage video').seeking")
    play_or_pause(page)
    wait_until(
        page, "window.hasLooped && (video => !video.paused && video.currentTime < 0.9)(document.querySelector('.stage video'))"
    )


def test_one_video_of_a_comparison_is_heard_at_a_time(page, tmp_path):
    page.locator("#prompt textarea").fill("a square that hums")
    page.keyboard.press("Alt+4")
    values = page.locator("#compare-values input, #compare-values textarea")
    values.fill("0, 1, 2")
    page.locator("#compare-start").click()
    page.locator('.compare[data-done="3"]').wait_for()
    unmuted = "JSON.stringify([...document.querySelectorAll('.compare video')].map(video => !video.muted))"
    values.press("1")
    assert page.evaluate(unmuted) == "[false,false,false]", "typed"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("2")
    wait_until(page, f"{unmuted} === '[false,true,false]'")
    assert page.locator('.compare figure[data-heard="true"] [aria-pressed="true"]').count() == 1
    page.wait_for_timeout(1500)  # long enough for the video to loop
    times = "[...document.querySelectorAll('.compare video')].map(video => video.currentTime)"
    wait_until(page, f"(times => Math.max(...times) - Math.min(...times) < 0.15)({times})")
    page.keyboard.press("4")
    assert page.evaluate(unmuted) == "[false,true,false]", "there is no fourth"
    with page.expect_download() as download:
        page.locator("#compare-export").click()
    shutil.copy(download.value.path(), tmp_path / "tiled.mp4")
    sound = read_sound(tmp_path / "tiled.mp4").samples[0]
    assert abs(np.abs(np.fft.rfft(sound)).argmax() * 24_000 / len(sound) - 440) < 3  # the seed 1
    page.locator(".compare figure").nth(2).locator("[data-compare=sound]").click()
    wait_until(page, f"{unmuted} === '[false,false,true]'")
    page.locator('#views [data-view="create"]').click()
    wait_until(page, f"{unmuted} === '[false,false,false]'")
    page.locator('#views [data-view="compare"]').click()
    wait_until(page, f"{unmuted} === '[false,false,true]'")
    page.keyboard.press("3")
    wait_until(page, f"{unmuted} === '[false,false,false]'")
