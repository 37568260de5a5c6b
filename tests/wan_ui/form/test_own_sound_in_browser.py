"""Tests of audio inputs in a real Chromium.

The field is shown for models that accept audio. The video contains the audio, loaded settings restore it, and bad files are
refused.
"""

import shutil

import numpy as np
import pytest

from backend.media.sound import Sound, read_sound
from presets import load_preset
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.form.test_load_settings_in_browser import drop
from tests.wan_ui.steps import made, ready
from wan_ui.i18n.english import ENGLISH

pytestmark = pytest.mark.browser

PRESET = load_preset("ltx-tiny")

SENDS_SLOWLY = """
(() => {
  const sent = window.fetch;
  window.fetch = async (...request) => {
    if (String(request[0]).includes('/upload')) await new Promise(done => setTimeout(done, 1500));
    return sent(...request);
  };
})()
"""


FAILS_ONCE = """
(() => {
  const sent = window.fetch.bind(window);
  let isFirst = true;
  window.fetch = async (...request) => {
    const fails = isFirst && String(request[0]).includes('/upload');
    isFirst &&= !fails;
    return fails ? Promise.reject(new TypeError('the network has gone')) : sent(...request);
  };
})()
"""


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir, more=["--offer", PRESET.name]) as server:
        yield _studio("fake", server)


def choose(page, title: str) -> None:
    page.locator("#preset input").click()
    page.get_by_role("option", name=title, exact=True).click()


def test_a_sound_of_ones_own_becomes_that_of_the_video(visit, tmp_path):
    own = tmp_path / "rising.wav"
    waves = 0.5 * np.sin(np.linspace(0, 60, 44_100) ** 2).astype(np.float32)
    Sound(samples=np.stack([waves, 0.2 * waves]), rate=22_050).write(own)
    page = visit()
    assert not page.locator("#own-sound").is_visible()
    choose(page, PRESET.title)
    page.locator("#own-sound button").first.click()
    page.locator("#input-sound input[type=file]").set_input_files(own)
    page.locator("#input-sound .waveform-container, #input-sound #waveform").first.wait_for()
    page.locator("#sound-start input").fill("0.5")
    made(page, "a red circle")
    with page.expect_download() as download:
        page.locator(".stage #download").first.click()
    shutil.copy(download.value.path(), tmp_path / "made.mp4")
    heard = read_sound(tmp_path / "made.mp4")
    left, right = np.sqrt(np.square(heard.samples).mean(1))  # AAC keeps loudness, not peaks
    assert heard.rate == 22_050 and left == pytest.approx(0.35, abs=0.05) and right == pytest.approx(0.07, abs=0.03)
    page.locator("#sound-start input").fill("7")
    page.locator("#prompt textarea").fill("a red circle that comes too late")
    page.locator("#generate").click()
    page.locator("#sound-note .note:not([hidden])").wait_for()
    assert "must be within the 2.00 s" in page.locator("#sound-note .note").inner_text()
    page.locator("#input-sound button[aria-label=Clear], #input-sound button[title=Clear]").first.click()
    page.locator('.stage [data-act="fill:use"]').first.click()
    page.locator("#input-sound .waveform-container, #input-sound #waveform").first.wait_for()
    assert page.locator("#sound-start input").input_value() == "0.5"
    stranger = visit()
    drop(stranger, tmp_path / "made.mp4")
    stranger.locator("#message .message.shown", has_text=ENGLISH.loaded_own_sound).wait_for()
    assert stranger.locator("#sound-start input").input_value() == "0.5" and stranger.locator("#input-sound").is_visible()
    choose(page, load_preset("wan-tiny").title)
    page.locator("#own-sound").wait_for(state="hidden")
    assert ENGLISH.own_sound not in page.locator("#asked-for").inner_text()


def test_a_recording_becomes_the_sound_of_the_video(visit, tmp_path):
    """Generate is pressed while the recording still runs, and the upload of the recording is slow."""
    page = visit()
    page.evaluate(SENDS_SLOWLY)
    choose(page, PRESET.title)
    page.locator("#own-sound button").first.click()
    page.locator("#input-sound button[aria-label='Record audio']").click()
    page.locator("#input-sound .record-button").click()
    page.locator("#input-sound .stop-button").wait_for()  # the microphone is open
    page.wait_for_timeout(2500)  # the fake microphone beeps once a second
    page.locator("#prompt textarea").fill("a red circle")
    page.locator("#generate").click()
    page.locator("#generate[aria-busy]").wait_for()
    page.locator("#input-sound .stop-button").wait_for(state="hidden")
    page.locator('.stage[data-phase="finished"]').wait_for()
    assert page.locator("#generate[aria-busy]").count() == 0
    with page.expect_download() as download:
        page.locator(".stage #download").first.click()
    shutil.copy(download.value.path(), tmp_path / "made.mp4")
    heard = np.abs(read_sound(tmp_path / "made.mp4").samples)
    assert heard.max() > 0.1 and np.median(heard) < 0.01


@pytest.mark.parametrize("ended", ["by hand", "by Generate"])
def test_a_recording_whose_upload_failed_is_sent_again_by_one_press(chromium, studio, tmp_path, ended):
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    context.add_init_script(FAILS_ONCE)
    page = context.new_page()
    page.goto(studio.url)
    ready(page)
    choose(page, PRESET.title)
    page.locator("#own-sound button").first.click()
    page.locator("#input-sound button[aria-label='Record audio']").click()
    page.locator("#input-sound .record-button").click()
    page.locator("#input-sound .stop-button").wait_for()
    page.wait_for_timeout(2500)
    page.locator("#prompt textarea").fill("a red circle")
    page.locator("#input-sound .stop-button" if ended == "by hand" else "#generate").click()
    page.locator("#message .message.shown", has_text=ENGLISH.recording_unsent).wait_for()
    assert page.locator("#generate[aria-busy]").count() == 0
    page.locator("#generate").click()
    page.locator('.stage[data-phase="finished"]').wait_for()
    with page.expect_download() as download:
        page.locator(".stage #download").first.click()
    shutil.copy(download.value.path(), tmp_path / "made.mp4")
    heard = np.abs(read_sound(tmp_path / "made.mp4").samples)
    assert heard.max() > 0.1 and np.median(heard) < 0.01
    context.close()
