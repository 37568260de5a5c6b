"""Measure instant drafts of the demo model in Chromium: `python -m benchmarks.instant`. Run it on an idle machine.

Prints one JSON object: the milliseconds from the last key to the draft on the screen (all, median, worst), and the machine's load
before and after. The 500 ms that the page waits after the last key are included.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.studio_load import start_server, wait_until_ready

SHAPES = ("red circle", "blue square", "yellow star", "green triangle", "magenta circle", "white square")
KEY_MILLISECONDS = 60  # 200 words per minute
PAUSE_MILLISECONDS = 1000

# JavaScript: store the time of the last key, and for each new draft the time of the first animation frame that shows the draft.
_WATCH = """() => {
  window.drafts = {};
  let key = 0;
  document.addEventListener('keydown', () => { key = performance.now(); }, true);
  new MutationObserver(() => {
    const {hidden, dataset: {prompt}} = document.querySelector('#draft .draft'), pressed = key;
    if (hidden || prompt in drafts) return;
    drafts[prompt] = null;
    requestAnimationFrame(() => { drafts[prompt] = performance.now() - pressed; });
  }).observe(document.querySelector('#draft'), {subtree: true, childList: true, attributes: true});
}"""


def measure(count: int) -> list[float]:
    """Return the milliseconds from the last key to the draft, for `count` prompts that are typed one after another."""
    from playwright.sync_api import sync_playwright

    from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS

    milliseconds = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server, url = start_server(Path(folder))
        try:
            wait_until_ready(url)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
            page = browser.new_page()
            page.set_default_timeout(120_000)
            page.goto(url)
            page.wait_for_function("window.studio?.isOpen")
            page.evaluate(_WATCH)
            page.locator("#instant input").check()
            for number in range(count + 1):  # the first draft may wait for a compilation
                prompt = f"a {SHAPES[number % len(SHAPES)]} moving right, number {number}"
                page.locator("#prompt textarea").fill("")
                page.locator("#prompt textarea").press_sequentially(prompt, delay=KEY_MILLISECONDS)
                page.wait_for_function("prompt => drafts[prompt] > 0", arg=prompt)
                milliseconds.append(page.evaluate("prompt => drafts[prompt]", prompt))
                page.wait_for_timeout(PAUSE_MILLISECONDS)
            browser.close()
        finally:
            server.terminate()
            server.wait()
    return milliseconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--drafts", type=int, default=20, help="number of prompts (%(default)s)")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    measured = measure(given.drafts)
    figures = {
        "milliseconds": [round(one) for one in measured],
        "median": round(statistics.median(measured)),
        "worst": round(max(measured)),
        "load_before_and_after": [round(before, 2), round(os.getloadavg()[0], 2)],
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
