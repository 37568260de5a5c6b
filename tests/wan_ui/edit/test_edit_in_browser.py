"""Tests of a clip in Edit: drop, trim, restyle and compare with the original; in a real Chromium, on a desktop and a phone."""

import pytest

from tests.clip_files import counting_clip, run_ffmpeg
from tests.wan_ui.steps import made, rest, wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def clip(tmp_path):
    """Return a clip of four seconds with moving colour and audio, 4:3, that browsers can play."""
    path = tmp_path / "holiday.mp4"
    moving = ["-f", "lavfi", "-i", "testsrc2=s=160x120:r=30:d=4", "-f", "lavfi", "-i", "sine=440:d=4"]
    run_ffmpeg(*moving, "-c:v", "libx264", "-g", "15", "-pix_fmt", "yuv420p", "-c:a", "aac", "-shortest", str(path))
    return path


DROP = """async ([bytes, name, type]) => {
  const moved = new DataTransfer();
  moved.items.add(new File([new Uint8Array(bytes)], name, {type}));
  for (const kind of ['dragover', 'drop']) document.querySelector('.edit .clip')
    .dispatchEvent(new DragEvent(kind, {dataTransfer: moved, bubbles: true, cancelable: true}));
}"""


def open_edit(page) -> None:
    page.locator('#views [data-view="edit"]').click()
    page.locator(".edit .target").wait_for()


def drop(page, path, kind: str = "video/mp4") -> None:
    page.evaluate(DROP, [list(path.read_bytes()), path.name, kind])


def taken(page, path) -> None:
    drop(page, path)
    page.locator(f'.edit[data-clip="{path.name}"]').wait_for()


def make(page, prompt: str, steps: int | None = 4) -> str:
    """Generate a video and return its job's id. With `steps` None the form's number of steps stays."""
    page.locator("#edit-prompt").fill(prompt)
    if steps is not None:
        page.locator("#edit-steps").evaluate("(field, steps) => { field.value = steps; }", steps)
    page.locator("#edit-make").click()
    wait_until(
        page,
        """prompt => document.querySelector('.stage').dataset.phase === 'finished'
           && document.querySelector('.stage .detail[title]').title === prompt""",
        prompt,
    )
    return page.locator(".stage").get_attribute("data-job")


def slide(page, selector: str, value: float) -> None:
    """Move a slider's handle, with the events that a visitor causes."""
    page.locator(selector).evaluate(
        "(handle, value) => { handle.value = value; handle.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
def test_a_clip_is_dropped_trimmed_made_and_compared_with_what_it_was(visit, clip, width):
    page = visit(width=width, height=900 if width > 760 else 844)
    open_edit(page)
    assert page.locator("#edit-make").is_disabled()
    taken(page, clip)
    wait_until(page, "document.querySelector('#edit-player').readyState >= 2")
    assert page.locator(".edit .thumbs").evaluate("picture => picture.naturalWidth") == 12 * 96
    wait_until(page, "document.querySelector('.edit .film').width > 300 && !document.querySelector('.edit .thumbs').offsetParent")
    assert "160 × 120 · 30 frames per second · 4.0 s · with audio" in page.locator(".edit .facts").inner_text()
    assert page.locator("#edit-part").inner_text() == "0.00 to 1.06 s: 17 frames at 16 per second, 1.06 s"
    assert page.locator("#edit-resolution").input_value() == "128x96", "the shape nearest to the clip's"
    slide(page, "#edit-from", 1.0)
    assert page.locator("#edit-part").inner_text() == "1.00 to 2.06 s: 17 frames at 16 per second, 1.06 s"
    slide(page, "#edit-to", 2.4)  # 22.4 frames: the handle goes to 21
    assert page.locator("#edit-part").inner_text() == "1.00 to 2.31 s: 21 frames at 16 per second, 1.31 s"
    assert float(page.locator("#edit-to").input_value()) == pytest.approx(2.31, abs=0.011)
    slide(page, "#edit-to", 4.0)  # 48 frames: the handle goes to 45
    assert "45 frames" in page.locator("#edit-part").inner_text()
    wait_until(page, "(() => { const t = document.querySelector('#edit-player').currentTime; return t > 1 && t < 3.9 })()")
    page.locator("#edit-steps").evaluate("field => { field.closest('details').open = true; }")
    page.locator("#edit-steps").fill("4")
    page.locator("#edit-strength").fill("0.5")
    assert "2 of 4 steps" in page.locator(".edit .strength output").inner_text()
    make(page, f"a square over my holiday {width}")
    facts = page.locator(".stage .facts").inner_text()
    assert "45 frames" in facts and "Context windows" in facts and "128 × 96" in facts and "0.5" in facts
    video = page.locator(".stage video")
    page.locator('[data-player="sound"]').click()
    assert video.evaluate("video => !video.muted")
    page.locator('.stage [data-act="compare:original"]').click()
    page.locator('.compare[data-original="true"][data-wipe="true"] figure[data-side="right"]').wait_for()
    labels = page.locator(".compare figcaption").all_inner_texts()
    assert labels == ["Before", "After"]
    wait_until(
        page, "[...document.querySelectorAll('.compare video')].every(video => video.readyState >= 2 && video.currentTime > 0.1)"
    )
    lengths = page.evaluate("[...document.querySelectorAll('.compare video')].map(video => video.duration)")
    assert lengths[0] == pytest.approx(45 / 16, abs=0.05) and lengths[1] == pytest.approx(45 / 16, abs=0.05)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_cannot_be_used_is_said_in_one_sentence(page, tmp_path):
    open_edit(page)
    notes, cut, short = (tmp_path / f"{name}.mp4" for name in ("notes", "cut", "short"))
    notes.write_text("words " * 200)
    whole = counting_clip(tmp_path / "whole.mp4", 40, 10)
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    counting_clip(short, 2, 16)
    for path, words in ((notes, "must be a video"), (cut, "is cut off or damaged"), (short, "is too short")):
        drop(page, path)
        wait_until(page, "words => document.querySelector('.edit > .note').innerText.includes(words)", words)
        assert page.locator(".edit > .note").inner_text().count(". ") <= 1
        assert page.locator("#edit-make").is_disabled()


def test_a_gif_and_a_chosen_file_are_clips_too(page, tmp_path):
    open_edit(page)
    page.locator("#edit-file").set_input_files(counting_clip(tmp_path / "party.gif", 30, 10))
    page.locator('.edit[data-clip="party.gif"]').wait_for()
    assert page.locator(".edit .still").is_visible() and not page.locator("#edit-player").is_visible()
    drop(page, counting_clip(tmp_path / "other.webm", 30, 10, options=["-c:v", "libvpx", "-b:v", "1M"]), "video/webm")
    page.locator('.edit[data-clip="other.webm"]').wait_for()
    assert page.locator("#edit-player").is_visible() and not page.locator(".edit .still").is_visible()


def test_a_part_is_moved_by_its_middle_and_by_keys(page, clip):
    open_edit(page)
    taken(page, clip)
    box = page.locator(".edit .strip").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.13, box["y"] + 27)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.63, box["y"] + 27, steps=5)
    page.mouse.up()
    start = float(page.locator("#edit-from").input_value())
    assert start == pytest.approx(2.0, abs=0.1) and "17 frames" in page.locator("#edit-part").inner_text()
    page.locator("#edit-from").focus()
    page.keyboard.press("ArrowLeft")
    assert float(page.locator("#edit-from").input_value()) < start
    page.locator(".edit .clip").click(position={"x": 20, "y": 40})
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 27)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 2, box["y"] + 27, steps=5)
    page.mouse.up()
    end = page.locator("#edit-part").inner_text()
    assert "17 frames" in end and float(end.split(" to ")[1].split(" s")[0]) <= 4.02, "it stays within the clip"


def test_an_earlier_video_brings_its_clip_and_its_settings_back(visit, clip):
    page = visit()
    open_edit(page)
    taken(page, clip)
    slide(page, "#edit-from", 1.5)
    page.locator("#edit-strength").fill("0.35")
    job = make(page, "a square to be made once more")
    rest(page)
    page.reload()
    wait_until(page, "window.studio?.isOpen")
    page.locator('.stage[data-phase="finished"] [data-act="edit:use"]').click()
    page.locator('.edit:not([data-clip=""])').wait_for()
    assert page.locator("#edit-prompt").input_value() == "a square to be made once more"
    assert page.locator("#edit-strength").input_value() == "0.35"
    assert page.locator("#edit-part").inner_text().startswith("1.50 to 2.56 s: 17 frames")
    wait_until(page, "document.querySelector('#edit-player').readyState >= 2")
    page.locator('.stage [data-act="again:same"]').click()
    wait_until(page, "job => document.querySelector('.stage').dataset.job !== job", job)
    page.locator('.stage[data-phase="finished"]').wait_for()
    assert "0.35" in page.locator(".stage .facts").inner_text()


def test_a_video_made_from_words_becomes_the_clip(visit):
    page = visit()
    made(page, "a square to be edited")
    page.locator('.stage[data-phase="finished"] [data-act="edit:clip"]').click()
    page.locator('.edit:not([data-clip=""])').wait_for()
    wait_until(page, "document.querySelector('#edit-player').readyState >= 2")
    assert page.locator("#edit-prompt").input_value() == "a square to be edited"
    assert page.locator('[name="edit-way"]:checked').get_attribute("value") == "anew"
    assert page.locator("#edit-part").inner_text().startswith("0.00 to ") and page.locator("#edit-seed").input_value() == ""
    slide(page, "#edit-strength", 0.4)
    job = make(page, "the same square made anew")
    assert page.locator('.stage [data-act="compare:original"]').is_visible() and job


def test_one_can_be_stopped_and_one_waits_without_a_pencil(visit, close_gate, clip):
    close_gate("a held square over a clip")
    page = visit()
    open_edit(page)
    taken(page, clip)
    page.locator("#edit-prompt").fill("a held square over a clip")
    page.locator("#edit-make").click()
    page.locator('.stage[data-phase="denoising"]').wait_for()
    page.locator("#edit-prompt").fill("the next one")
    page.locator("#edit-make").click()
    item = page.locator('.queue li[data-state="queued"]', has_text="the next one")
    item.wait_for()
    assert item.locator('[data-act="fill:edit"]').count() == 0 and item.locator('[data-act="queue:cancel"]').count() == 1
    item.hover()
    item.locator('[data-act="queue:cancel"]').click()
    assert page.locator(".stage").get_attribute("data-phase") == "denoising", "the next one has not taken its place"
    page.locator("#edit-stop").click()
    page.locator('.stage[data-phase="cancelled"]').wait_for()


@pytest.mark.slow  # test_modes_in_browser.py tests a phone with keyframes
def test_on_a_phone_a_video_taken_as_clip_brings_its_form_into_sight(visit):
    page = visit(width=390, height=844)
    made(page, "a red circle")
    page.locator('.stage [data-act="edit:clip"]').click()
    page.locator("#edit-make").wait_for()
    wait_until(page, "document.querySelector('#edit').getBoundingClientRect().top < innerHeight / 4")
