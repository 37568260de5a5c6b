"""Take the documentation's pictures: `python -m tests.wan_ui.screenshots` starts the studio and writes docs/screenshots.

The studio uses the demo models and an empty data folder, so that its library shows only the videos of this tour. The tour takes
about two minutes. An argument names another folder. `tests/test_documents.py` compares `PICTURES` with the files.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from backend.settings import PROJECT_FOLDER
from tests.clip_files import run_ffmpeg
from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS, DESKTOP, PATIENCE_MS, _serving
from tests.wan_ui.steps import ready, wait_until
from wan_ui.i18n.english import Texts

FOLDER = PROJECT_FOLDER / "docs" / "screenshots"
PICTURES = ("studio", "running", "picture", "edit", "live", "compare", "wipe", "film", "library", "system")
MOMENT = (0.25, 0.5)  # seconds of a playing video at which a picture is taken: the shape has moved, and is still in the frame
SETTLED_MS = 3000  # until small pictures are loaded, and the browser hides the controls of a player
RESTYLED = "a large green star drifts upwards over a black background"
LIVE = "a red circle on a navy background"
COMPARED = "a small cyan star drifts to the left over a navy background"
SHOTS = ("a red circle moving right on a black background", COMPARED, "a green circle growing on a black background")


class Tour:
    """A visitor who uses every view once, and takes a picture of each."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page, self._folder = page, folder

    def make_videos(self) -> None:
        """Queue several videos of examples, then wait for the last one."""
        page = self._page
        for number in (1, 2, 3, 4, 0):
            page.locator("#examples button").nth(number).click()
            self._fill_steps(100 if number == 1 else 20)
            page.locator("#generate").click()
            page.wait_for_timeout(250)
        wait_until(page, "/ [1-9]\\d /.test(document.querySelector('.stage .readout').innerText)")
        page.wait_for_timeout(1600)
        self._take("running")
        wait_until(page, "document.querySelector('.queue').dataset.count === '0'")
        page.locator("#examples button").nth(1).click()
        self._fill_steps(20)
        self._generate("#generate")
        self._take("studio", play=".stage video")

    def start_from_an_image(self) -> None:
        """Make a video from an example image."""
        page = self._page
        page.get_by_role("tab", name=Texts().tab_image).click()
        page.locator("#image-examples button").nth(1).click()
        page.locator("#crop-preview img").wait_for()
        self._generate("#generate")
        self._take("picture", play=".stage video")
        page.get_by_role("tab", name=Texts().tab_text).click()

    def restyle_a_clip(self) -> None:
        """Restyle the video on the stage."""
        page = self._page
        page.locator('.stage [data-act="edit:clip"]').click()
        page.locator("#edit-player").wait_for()
        page.locator("#edit-prompt").fill(RESTYLED)
        self._generate("#edit-make")
        self._take("edit", play=".stage video")

    def steer_a_live_video(self) -> None:
        """Steer a live video, then stop it."""
        page = self._page
        self._open("live")
        page.locator("#live-prompt").fill(LIVE)
        page.locator("#live-start").click()
        wait_until(page, "Number(document.querySelector('#live-canvas').dataset.frame ?? -1) >= 12")
        page.locator('[data-steer="right"]').dispatch_event("pointerdown", {"pointerId": 1})
        page.wait_for_timeout(1200)
        self._take("live")
        page.locator("#live-stop").click()
        wait_until(page, "!document.querySelector('#live-start').hidden")

    def compare(self) -> None:
        """Compare four numbers of steps, side by side and by a wipe."""
        page = self._page
        self._open("create")
        page.locator("#prompt textarea").fill(COMPARED)
        self._open("compare")
        page.locator("#compare-what input").click()
        page.get_by_role("option", name=Texts().steps, exact=True).click()
        page.locator("#compare-values input, #compare-values textarea").fill("2, 4, 8, 20")
        page.locator("#compare-start").click()
        page.locator('.compare[data-done="4"]').wait_for()
        self._take("compare", play=".compare video")
        page.locator("[data-compare=wipe]").check()
        page.locator("[data-compare=right]").select_option("3")
        self._take("wipe", play=".compare video")
        page.locator("[data-compare=wipe]").uncheck()

    def make_a_film(self, music: Path) -> None:
        """Make a storyboard of three shots, add a soundtrack and cut it."""
        page = self._page
        self._open("create")
        page.locator(".shots-switch").click()
        for index, prompt in enumerate(SHOTS):
            if index > 1:
                page.locator('[data-shot="add"]').click()
            page.locator(".film-block").nth(index).click()
            page.locator(".shot-detail textarea").fill(prompt)
            if index:
                page.locator(".shot-detail [name=start]").select_option("cut")
        self._generate("#generate")
        wait_until(page, "[...document.querySelectorAll('.film-block')].every(block => block.dataset.made === 'true')")
        page.locator(".film-track input[type=file]").set_input_files(music)
        wait_until(page, "document.querySelector('.film-lane').offsetHeight > 0")
        self._generate("#generate")
        page.locator(".film-block").nth(1).click()
        page.locator(".shots-switch").scroll_into_view_if_needed()
        self._take("film", play=".stage video")
        page.locator(".shots-switch").click()

    def look_around(self) -> None:
        """Open a video in the library, then the system's view."""
        page = self._page
        self._open("library")
        page.wait_for_timeout(SETTLED_MS)  # the grid is drawn again with the newest videos
        page.locator("#library-grid li", has_text=RESTYLED).click()
        page.locator("#library-detail video").wait_for()
        self._take("library", play="#library-detail video")
        self._open("system")
        page.locator(".system").wait_for()
        self._take("system")

    def _open(self, view: str) -> None:
        self._page.locator(f'#views [data-view="{view}"]').click()

    def _fill_steps(self, steps: int) -> None:
        field = self._page.locator("#steps input[type=number]")
        field.fill(str(steps))
        field.blur()
        self._page.wait_for_timeout(150)

    def _generate(self, button: str) -> None:
        """Press the button, and wait for the end of its video."""
        page = self._page
        before = page.locator(".stage").get_attribute("data-job")
        page.locator(button).click()
        wait_until(page, "before => document.querySelector('.stage').dataset.job !== before", before)
        wait_until(page, "document.querySelector('.stage').dataset.phase === 'finished'")

    def _take(self, name: str, *, play: str | None = None) -> None:
        """Write a picture, at a moment of the video that `play` selects."""
        page = self._page
        page.mouse.move(700, 2)
        page.wait_for_timeout(SETTLED_MS if play else 300)
        if play:
            wait_until(
                page,
                """([play, [from, to]]) => {
                  const {currentTime} = document.querySelector(play);
                  return from < currentTime && currentTime < to;
                }""",
                [play, MOMENT],
            )
        page.screenshot(path=self._folder / f"{name}.png")


def take_pictures(url: str, folder: Path, music: Path) -> None:
    """Tour the studio at this address, in the dark theme."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        width, height, _ = DESKTOP
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark")
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        ready(page)
        tour = Tour(page, folder)
        tour.make_videos()
        tour.start_from_an_image()
        tour.restyle_a_clip()
        tour.steer_a_live_video()
        tour.compare()
        tour.make_a_film(music)
        tour.look_around()
        browser.close()


def main(folder: Path) -> None:
    """Start the studio, tour it, and end it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data_dir:
        music = Path(data_dir) / "music.wav"
        swelling = "sine=330:d=3.2,volume='0.1+0.8*abs(sin(2*t))':eval=frame"
        run_ffmpeg("-f", "lavfi", "-i", swelling, str(music))
        with _serving("demo", Path(data_dir)) as server:
            take_pictures(server.url, folder, music)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
