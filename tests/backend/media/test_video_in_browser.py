"""Real Chromium plays our videos to the end and at their exact size."""

import base64

import pytest

from backend.media.video import write_video
from tests.backend.media.test_video import REQUEST, moving
from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS

PLAY = """async () => {
    const video = document.querySelector('video');
    await new Promise((loaded, failed) => {
        video.oncanplaythrough = loaded; video.onerror = () => failed(video.error.message); video.load();
    });
    const ended = new Promise(ended => video.onended = ended);
    await video.play();
    await ended;
    return [video.videoWidth, video.videoHeight, video.getVideoPlaybackQuality().totalVideoFrames, video.duration];
}"""


@pytest.mark.browser
def test_it_plays_to_the_end_at_its_size(tmp_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        page = browser.new_page()
        for width, height in ((128, 128), (127, 97), (90, 51), (17, 34)):
            path = tmp_path / f"{width}.mp4"
            write_video(moving(width, height, 17), path, fps=16, request=REQUEST)
            data = base64.b64encode(path.read_bytes()).decode()
            page.set_content(f'<video muted src="data:video/mp4;base64,{data}"></video>')
            *shown, seconds = page.evaluate(PLAY)
            assert shown == [width, height, 17]
            assert seconds == pytest.approx(17 / 16, abs=0.02)
        browser.close()
