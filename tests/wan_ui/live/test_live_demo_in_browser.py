"""Tests of the live demo model in a real Chromium: keys and prompts steer the shape, and the same cues give the same video."""

import numpy as np
import pytest

from backend.media.video import read_frames
from tests.wan_ui.steps import wait_until

ONLY_DEMO = pytest.mark.parametrize("every_studio", [pytest.param("demo", marks=pytest.mark.demo_model)], indirect=True)
pytestmark = [pytest.mark.browser, ONLY_DEMO]

# JavaScript: the centre of the shape as fractions of the frame, and its colour, red or blue, from the canvas.
SHAPE = """(() => {
  const canvas = document.querySelector('#live-canvas'), {width, height} = canvas;
  const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);
  let across = 0, down = 0, lit = 0, red = 0;
  for (let at = 0; at < width * height; at++) {
    const [r, b] = [data[4 * at], data[4 * at + 2]];
    if (Math.max(r, b) > 150) { lit++; across += at % width / width; down += Math.floor(at / width) / height; red += r > b; }
  }
  return {x: across / lit, y: down / lit, colour: !lit ? 'none' : 2 * red > lit ? 'red' : 'blue', frame: Number(canvas.dataset.frame ?? -1)};
})()"""


@pytest.fixture(scope="module")
def studio(every_studio):
    return every_studio


def shape(page) -> dict:
    return page.evaluate(SHAPE)


def pixels(page, url: str, tmp_path) -> np.ndarray:
    answer = page.request.get(url)
    assert answer.ok
    path = tmp_path / "fetched.mp4"
    path.write_bytes(answer.body())
    return np.stack(list(read_frames(path)))


@pytest.mark.slow  # the view is shown in test_live_in_browser.py, the model in tests/backend/pipeline/test_live.py
def test_it_turns_becomes_another_stops_plays_and_is_made_again_to_the_same_pixels(visit, tmp_path):
    page = visit()
    page.locator('#views [data-view="live"]').click()
    page.locator("#live-preset").select_option("wan-live-tiny")
    page.locator("#live-prompt").fill("a red circle on a black background")
    page.locator("#live-start").click()
    wait_until(page, f"{SHAPE}.colour === 'red'")
    start = shape(page)
    page.locator("#live-canvas").click()
    page.keyboard.down("ArrowRight")
    wait_until(page, f"{SHAPE}.x > {start['x'] + 0.12}")
    page.keyboard.up("ArrowRight")
    page.keyboard.down("ArrowUp")
    wait_until(page, f"{SHAPE}.y < {start['y'] - 0.12}")
    page.keyboard.up("ArrowUp")
    page.locator("#live-prompt").fill("a blue square on a black background")
    page.locator("#live-say").click()
    wait_until(page, f"{SHAPE}.colour === 'blue'")
    page.locator("#live-stop").click()
    wait_until(page, "document.querySelector('.live .headline').innerText.includes('in your library')")
    page.locator('#views [data-view="library"]').click()
    page.locator("#library-grid li").first.click()
    wait_until(page, "document.querySelector('#library-detail video')?.currentTime > 0")
    video = page.locator("#library-detail video")
    first = pixels(page, video.evaluate("video => video.src"), tmp_path)
    job = page.locator("#library-detail .detail").get_attribute("data-job")
    page.locator('#library-detail [data-act="show:show"]').click()
    page.locator('.stage [data-act="again:same"]').click()
    wait_until(page, "job => document.querySelector('.stage').dataset.job !== job", job)
    page.locator('.stage[data-phase="finished"]').wait_for()
    again = pixels(page, page.locator(".stage video").evaluate("video => video.src"), tmp_path)
    np.testing.assert_array_equal(first, again)
