"""Takes the documentation's pictures of a running studio: `python -m tests.wan_ui.screenshots URL FOLDER`.

Uses what the studio offers first: its first example prompt and its second example picture. Every screen in both themes.
"""

import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS

DESKTOP, PHONE = (1440, 900), (390, 844)
PATIENCE_MS = 300_000


def main(url: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        for theme in ("light", "dark"):
            for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
                context = browser.new_context(
                    viewport={"width": size[0], "height": size[1]}, color_scheme=theme, is_mobile=name == "phone",
                    device_scale_factor=2 if name == "phone" else 1,
                )  # fmt: skip
                tour(_opened(context.new_page(), url), folder, f"{name}-{theme}")
                context.close()
        browser.close()


def tour(page: Page, folder: Path, name: str) -> None:
    """Idle, wrong, running, finished, and the same for image to video."""

    def shoot(what: str) -> None:
        page.mouse.move(0, 0)
        page.screenshot(path=folder / f"{name}-{what}.png")

    shoot("idle")
    page.locator("#generate").click()
    page.locator("#prompt-note .note").wait_for()
    shoot("error")
    page.locator("#examples button").nth(1).click()
    _generate(page, lambda: shoot("running"))
    shoot("finished")
    page.get_by_role("tab", name="Image to video").click()
    page.locator("#image-examples button").nth(1).click()
    page.locator("#crop-preview img").wait_for()
    _generate(page, lambda: shoot("image-running"))
    shoot("image-finished")


def _opened(page: Page, url: str) -> Page:
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    page.wait_for_function("document.querySelector('.status')?.dataset.state === 'ready'")
    return page


def _generate(page: Page, while_it_runs) -> None:
    page.locator("#generate").click()
    page.wait_for_function("/Step ([5-9]|1\\d) /.test(document.querySelector('.stage .readout').innerText)")
    while_it_runs()
    page.locator('.stage[data-phase="finished"]').wait_for()
    page.wait_for_function("document.querySelector('.stage video').currentTime > 0.6")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
