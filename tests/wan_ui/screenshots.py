"""Takes the documentation's pictures of a running studio: `python -m tests.wan_ui.screenshots URL FOLDER`.

Every view in both themes, at 1440 x 900 and on a phone. Uses what the studio offers first: its example prompts and its second
example picture. The studio should be fresh, so that the library holds what was made here.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS

DESKTOP, PHONE = (1440, 900), (390, 844)
PATIENCE_MS = 60_000
COMPARED = "a small cyan star drifts to the left over a navy background"


def main(url: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        for theme in ("dark", "light"):
            for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
                context = browser.new_context(
                    viewport={"width": size[0], "height": size[1]},
                    color_scheme=theme,
                    is_mobile=name == "phone",
                    has_touch=name == "phone",
                    device_scale_factor=2 if name == "phone" else 1,
                )
                tour(context, url, folder, f"{name}-{theme}")
                context.close()
        browser.close()


def tour(context: BrowserContext, url: str, folder: Path, name: str) -> None:
    """Every view, with something in it."""
    page = _opened(context.new_page(), url)

    def shoot(what: str) -> None:
        page.mouse.move(700, 2)
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}-{what}.png")

    shoot("idle")
    make_some(page, shoot)
    make_from_a_picture(page, shoot)
    compare(page, shoot)
    look_around(page, shoot)


def make_some(page: Page, shoot: Callable[[str], None]) -> None:
    """Text to video: an error, a queue, a finished video."""
    page.locator("#generate").click()
    page.locator("#prompt-note .note").wait_for()
    shoot("error")
    for number in (1, 2, 3, 4, 0):
        page.locator("#examples button").nth(number).click()
        page.wait_for_timeout(150)
        steps = "100" if number == 1 else "20"
        page.locator("#steps input[type=number]").fill(steps)
        page.locator("#steps input[type=number]").blur()
        page.locator("#generate").click()
        page.wait_for_timeout(250)
    page.wait_for_function("/Step [1-9]\\d /.test(document.querySelector('.stage .readout').innerText)")
    page.wait_for_timeout(1600)
    shoot("running")
    page.wait_for_function("document.querySelector('.queue').dataset.count === '0'")
    page.wait_for_function("document.querySelector('.stage video').currentTime > 0.6")
    shoot("finished")


def make_from_a_picture(page: Page, shoot: Callable[[str], None]) -> None:
    """Image to video."""
    page.get_by_role("tab", name="Image to video").click()
    page.locator("#image-examples button").nth(1).click()
    page.locator("#crop-preview img").wait_for()
    first = page.locator(".stage").get_attribute("data-job")
    page.locator("#generate").click()
    page.wait_for_function("first => document.querySelector('.stage').dataset.job !== first", arg=first)
    page.locator('.stage[data-phase="finished"]').wait_for()
    page.wait_for_function("document.querySelector('.stage video').currentTime > 0.6")
    shoot("picture")
    page.get_by_role("tab", name="Text to video").click()


def compare(page: Page, shoot: Callable[[str], None]) -> None:
    """Four numbers of steps side by side, then a wipe."""
    page.locator("#prompt textarea").fill(COMPARED)
    page.locator('#views [data-view="compare"]').click()
    page.locator("#compare-what input").click()
    page.get_by_role("option", name="Steps").click()
    page.locator("#compare-values input, #compare-values textarea").fill("2, 4, 8, 20")
    page.locator("#compare-start").click()
    page.locator('.compare[data-done="4"]').wait_for()
    page.wait_for_function("document.querySelector('.compare video').currentTime > 0.5")
    shoot("compare")
    page.locator("[data-compare=wipe]").check()
    page.locator("[data-compare=right]").select_option("3")
    page.wait_for_timeout(300)
    shoot("wipe")
    page.locator("[data-compare=wipe]").uncheck()


def look_around(page: Page, shoot: Callable[[str], None]) -> None:
    """Library, system, menus, help."""
    page.locator('#views [data-view="library"]').click()
    page.locator("#library-grid li").nth(5).click()
    page.locator("#library-detail video").wait_for()
    page.wait_for_timeout(900)
    shoot("library")
    page.locator('#views [data-view="system"]').click()
    page.locator(".system").wait_for()
    shoot("system")
    page.locator('#views [data-view="models"]').click()
    page.locator(".models").wait_for()
    shoot("models")
    page.locator('#views [data-view="create"]').click()
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("Slow and careful")
    page.locator('[data-act="own:save"]').click()
    page.locator('[data-act="own:load"]').wait_for()
    shoot("presets")
    page.keyboard.press("Escape")
    page.locator("#queue-toggle").click()
    shoot("queue-toggled")
    if page.locator("#help-toggle").is_visible():  # a phone has no keys to explain
        page.locator("#help-toggle").click()
        shoot("help")


def _opened(page: Page, url: str) -> Page:
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    page.wait_for_function("document.querySelector('.status')?.dataset.state === 'ready'")
    return page


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
