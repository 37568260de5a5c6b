"""Measure the speed of the live demo: `python -m benchmarks.live`. `--minutes 10` also shows whether the speed stays constant.

Prints one JSON object:

- the frames per second if one thread denoises and another thread decodes;
- mean, median and 95th percentile of a block's forward pass in milliseconds, with the ring of cached keys, and with
  the whole past computed again;
- the largest and the mean difference between these two results;
- with `--browser`, the milliseconds from a key press to a changed image, and the drawn frames per second.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from backend.models.model import VIDEO
from backend.pipeline import prompt_schedule
from backend.pipeline.denoising_loop import Denoising
from backend.pipeline.live import live
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.run import Denoised, Run
from backend.runtime.work import run as do
from backend.schemas.events import Block
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from benchmarks.studio_load import resident, start_server, wait_until_ready
from presets import load_preset

PRESET, PROMPT = "wan-live-tiny", "a red circle on a navy background"
ACTIONS = ("right", "up", "left", "down")
COMPARED = range(4, 24)  # indices of the compared blocks
PRESSES = 40


def make_live(loaded: LoadedModel, seconds: float) -> dict:
    """Generate a video of this length at full speed, with a new action every two seconds."""
    preset = load_preset(PRESET)
    request = GenerationRequest.from_preset(preset, prompt=PROMPT, seed=1, num_frames=preset.max_frames, is_open=True)
    wanted, frames, took, sizes = round(seconds * preset.fps), [0], [], []
    calls = itertools.count()

    def hear() -> list[Cue]:
        number = next(calls)
        return [Cue(block=0, action=ACTIONS[number // 8 % len(ACTIONS)])] if number % 8 == 0 else []

    with tempfile.TemporaryDirectory() as folder:
        began = last = None
        for event in live(request, loaded, Path(folder), lambda: frames[0] >= wanted, hear, lead=float("inf")):
            now = time.monotonic()
            if isinstance(event, Block):
                if last is not None:
                    took.append(now - last)
                began, last, frames[0] = began or now, now, event.end
                if event.index % 20 == 0:
                    sizes.append(resident(os.getpid()))
    assert began is not None and last is not None, "no block was made"
    seconds_taken = last - began
    tenth = max(1, len(took) // 10)
    return {
        "video_seconds": round(frames[0] / preset.fps, 1),
        "frames_a_second": round((frames[0] - 1) / seconds_taken, 1),
        "block_milliseconds_in_the_second_and_the_last_tenth": [
            round(1000 * statistics.median(part), 1) for part in (took[tenth : 2 * tenth], took[-tenth:])
        ],
        "megabytes_after_a_tenth_and_at_the_end": [sizes[len(sizes) // 10], sizes[-1]],
    }


def compare(loaded: LoadedModel) -> dict:
    """Compare forward passes with the ring of cached keys to passes that compute the whole past again."""
    preset = load_preset(PRESET)
    request = GenerationRequest.from_preset(preset, prompt=PROMPT, seed=1, num_frames=1 + 4 * COMPARED.stop)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(request=request, loaded=loaded, folder=Path(folder), is_cancelled=lambda: False)
        conditions = do(prompt_schedule.encode_all_texts(loaded.model, loaded.weights, request, {}))
        cached, fresh, differences = [], [], []
        loop, steps = Denoising(run, conditions), preset.steps
        for block in range(COMPARED.stop):
            loop.step()
            before = loop.copy_to_host()
            began = time.monotonic()
            loop.step()
            ours = loop.current_latents(is_clean=True)[VIDEO]
            cached.append(time.monotonic() - began)
            if block in COMPARED:
                anew = Denoising(
                    run, conditions, Denoised(states=before.states, steps_done=block * steps + 1, chunks=before.chunks)
                )
                began = time.monotonic()
                anew.step()
                theirs = anew.current_latents(is_clean=True)[VIDEO]
                fresh.append(time.monotonic() - began)
                differences.append(np.abs(ours - theirs))
    whole = np.concatenate([one.ravel() for one in differences])
    return {
        "cached_milliseconds": spread(cached[COMPARED.start :]),
        "uncached_milliseconds": spread(fresh),
        "largest_difference": float(whole.max()),
        "mean_difference": float(whole.mean()),
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Return mean, median and 95th percentile in milliseconds."""
    ordered = sorted(1000 * value for value in seconds)
    return {
        "mean": round(statistics.mean(ordered), 2),
        "median": round(statistics.median(ordered), 2),
        "95_percent": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
    }


# JavaScript: press a key and wait until the shape moves in the opposite direction.
_PRESS = """
async ([key, sign]) => {
  const canvas = document.querySelector('#live-canvas'), context = canvas.getContext('2d', {willReadFrequently: true});
  const centre = () => {
    const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
    let sum = 0, count = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at] > 150) { sum += at / 4 % canvas.width; count++; }
    return count ? sum / count : NaN;
  };
  const began = performance.now(), start = centre();
  document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  let far = start;
  for (;;) {
    await new Promise(requestAnimationFrame);
    const now = centre();
    far = sign > 0 ? Math.min(far, now) : Math.max(far, now);
    if (sign * (now - far) > 0.7) return performance.now() - began;
    if (performance.now() - began > 5000) return 5000;
  }
}
"""


def through_a_browser() -> dict:
    """Measure through the real server and a real browser."""
    from playwright.sync_api import sync_playwright

    from tests.wan_ui.conftest import CHROMIUM, CHROMIUM_ARGUMENTS

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server, url = start_server(Path(folder))
        try:
            wait_until_ready(url)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
            page = browser.new_page()
            page.goto(url)
            page.locator('#views [data-view="live"]').click()
            page.locator("#live-prompt").fill(PROMPT)
            page.locator("#live-start").click()
            page.wait_for_function("Number(document.querySelector('#live-canvas').dataset.frame) > 8", timeout=120_000)
            delays, moments = [], random.Random(1)
            for number in range(PRESSES + 2):
                key, sign = (("ArrowRight", 1), ("ArrowLeft", -1))[number % 2]
                delays.append(page.evaluate(_PRESS, [key, sign]) / 1000)
                page.keyboard.up(key)
                page.wait_for_timeout(500 + moments.uniform(0, 250))  # a block lasts 250 ms: press at any time in it
            first, began = int(page.locator("#live-canvas").get_attribute("data-frame") or 0), time.monotonic()
            page.wait_for_timeout(20_000)
            drawn = (int(page.locator("#live-canvas").get_attribute("data-frame") or 0) - first) / (time.monotonic() - began)
            page.locator("#live-stop").click()
            browser.close()
        finally:
            server.terminate()
            server.wait()
    return {"key_to_picture_milliseconds": spread(delays[2:]), "drawn_frames_a_second": round(drawn, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0.5, help="length of the video (%(default)s)")
    parser.add_argument("--browser", action="store_true", help="also through the server and Chromium")
    given = parser.parse_args()
    loaded = load(load_preset(PRESET), None, lambda event: None)
    figures = {"preset": PRESET} | compare(loaded) | make_live(loaded, 60 * given.minutes)
    if given.browser:
        figures |= through_a_browser()
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
