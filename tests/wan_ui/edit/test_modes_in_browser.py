"""Tests of the Edit view with a model with control blocks: inpaint, outpaint and extend a clip, and drag keyframes.

They run in a real Chromium, on a desktop and, by touch, on a phone.
"""

import json

import numpy as np
import pytest
from PIL import Image

from tests.clip_files import run_ffmpeg
from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.edit.test_edit_in_browser import make, open_edit, slide, taken
from tests.wan_ui.steps import rest, wait_until
from wan_ui.i18n.english import ENGLISH

pytestmark = pytest.mark.browser
VACE, LTX = "wan2.1-vace-1.3b-480p", "ltx-2.3-704p"
PAINTED = """document.querySelector('#edit-canvas').getContext('2d')
  .getImageData(0, 0, 160, 120).data.filter((value, at) => at % 4 === 3 && value > 127).length"""
DROP = """([bytes, name, share]) => {
  const track = document.querySelector('.track'), box = track.getBoundingClientRect(), moved = new DataTransfer();
  moved.items.add(new File([new Uint8Array(bytes)], name, {type: 'image/png'}));
  const given = {dataTransfer: moved, bubbles: true, cancelable: true, clientX: box.left + box.width * share, clientY: box.top + 20};
  for (const kind of ['dragover', 'drop']) track.dispatchEvent(new DragEvent(kind, given));
}"""


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir, more=["--offer", VACE, "--offer", LTX]) as server:
        yield _studio("fake", server)


@pytest.fixture
def clip(tmp_path):
    """Return a clip of four seconds with moving colour, 4:3, that browsers can play."""
    path = tmp_path / "holiday.mp4"
    run_ffmpeg(
        "-f", "lavfi", "-i", "testsrc2=s=160x120:r=30:d=4", "-c:v", "libx264", "-g", "15", "-pix_fmt", "yuv420p", str(path)
    )
    return path


@pytest.fixture
def pictures(tmp_path):
    """Return three small images, one colour each."""
    colours = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 220)}
    for name, colour in colours.items():
        Image.new("RGB", (64, 48), colour).save(tmp_path / f"{name}.png")
    return [tmp_path / f"{name}.png" for name in colours]


def choose(page, way: str) -> None:
    """Choose a mode of Edit, and the 1.3B VACE model for the modes that need VACE."""
    page.locator(f'[name="edit-way"][value="{way}"]').check(force=True)
    if way != "anew" and page.locator("#edit-preset").input_value() != VACE:
        page.locator("#edit-preset").select_option(VACE)
    page.locator(f'.edit[data-way="{way}"]').wait_for()


class Finger:
    """Draws lines across an element: by touch on a phone, otherwise with the mouse."""

    def __init__(self, page, selector: str):
        self.page, self.place = page, page.locator(selector)
        is_phone = page.evaluate("navigator.maxTouchPoints > 0")
        self.touch = page.context.new_cdp_session(page) if is_phone else None

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a line between two places, given as fractions of the element's width and height."""
        self.place.scroll_into_view_if_needed()
        box = self.place.bounding_box()
        points = [
            tuple(
                box[corner] + box[side] * (one + (two - one) * step / 8)
                for corner, side, one, two in zip("xy", ("width", "height"), start, end, strict=True)
            )
            for step in range(9)
        ]
        if self.touch is None:
            self.page.mouse.move(*points[0])
            self.page.mouse.down()
            for point in points[1:]:
                self.page.mouse.move(*point)
            self.page.mouse.up()
            return
        kinds = ["touchStart", *["touchMove"] * 8]
        for kind, (x, y) in zip(kinds, points, strict=True):
            self.touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
        self.touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def asked_for(data_dir, job: str) -> dict:
    """Return the stored request, which also reached the pipeline."""
    return json.loads((data_dir / "runs" / job / "request.json").read_text())


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
def test_a_clip_is_dropped_trimmed_painted_over_made_and_compared(visit, clip, data_dir, width):
    page = visit(width=width, height=900 if width > 760 else 844)
    open_edit(page)
    taken(page, clip)
    page.locator('[name="edit-way"][value="paint"]').check(force=True)
    assert page.locator("#edit-preset").input_value() == "wan-tiny-vace", "a model that can"
    assert page.locator(".scale").is_visible() and page.locator(".references").is_visible()
    choose(page, "paint")
    slide(page, "#edit-from", 1.0)
    slide(page, "#edit-to", 2.06)
    assert "17 frames" in page.locator("#edit-part").inner_text()
    page.locator("#edit-prompt").fill("x")
    page.locator("#edit-make").click()
    wait_until(page, "document.querySelector('.edit > .note').innerText.includes('First paint the areas to regenerate')")
    finger = Finger(page, "#edit-canvas")
    finger.line((0.4, 0.25), (0.6, 0.25))
    first = page.evaluate(PAINTED)
    page.locator("#edit-brush-size").fill("30")
    finger.line((0.4, 0.7), (0.6, 0.7))
    assert page.evaluate(PAINTED) > 2 * first > 100
    page.locator("#edit-undo").click()
    assert page.evaluate(PAINTED) == first
    page.locator("#edit-eraser").click()
    finger.line((0.6, 0.25), (0.65, 0.25))
    assert 0 < page.evaluate(PAINTED) < first
    if width > 760:
        page.keyboard.press("Control+z")
        assert page.evaluate(PAINTED) == first
    assert page.locator("#edit-player").evaluate("player => player.paused"), "one paints on a frame that stands still"
    job = make(page, f"a square over my holiday {width}")
    request = asked_for(data_dir, job)
    assert request["trim"] == [1.0, 2.0625] and "strength" not in request and request["preset"] == VACE
    mask = np.asarray(Image.open(data_dir / "runs" / job / "mask.png").convert("L"))
    assert mask.shape == (120, 160) and mask[30, 70] == 255 and mask[84, 80] == 0 and 0 < (mask > 127).sum() <= first + 50
    page.locator('.stage [data-act="compare:original"]').click()
    page.locator('.compare[data-original="true"][data-wipe="true"] figure[data-side="right"]').wait_for()
    assert page.locator(".compare figcaption").all_inner_texts() == ["Before", "After"]
    wait_until(page, "[...document.querySelectorAll('.compare video')].every(video => video.readyState >= 2)")
    lengths = page.evaluate("[...document.querySelectorAll('.compare video')].map(video => video.duration)")
    assert lengths == pytest.approx([17 / 16, 17 / 16], abs=0.05)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_mask_is_brought_turned_around_and_comes_back_with_its_video(visit, clip, data_dir, tmp_path):
    page = visit()
    open_edit(page)
    taken(page, clip)
    choose(page, "paint")
    slide(page, "#edit-to", 1.06)
    mask = Image.new("L", (80, 60), 0)
    mask.paste(255, (0, 0, 20, 60))
    mask.save(tmp_path / "left.png")
    Image.new("L", (60, 60), 255).save(tmp_path / "square.png")
    page.locator("#edit-mask").set_input_files(tmp_path / "square.png")
    wait_until(page, "document.querySelector('.edit > .note').innerText.includes('must have the shape of the clip, 160x120')")
    page.locator("#edit-mask").set_input_files(tmp_path / "left.png")
    wait_until(page, f"{PAINTED} > 0")
    assert page.evaluate(PAINTED) == pytest.approx(40 * 120, abs=240)
    page.locator("#edit-invert").check()
    assert page.evaluate(PAINTED) == pytest.approx(120 * 120, abs=240)
    page.locator("#edit-keeps").uncheck()
    job = make(page, "everything but the left")
    assert asked_for(data_dir, job)["keeps_pixels"] is False
    stored = np.asarray(Image.open(data_dir / "runs" / job / "mask.png").convert("L"))
    assert stored[60, 10] == 0 and stored[60, 150] == 255
    rest(page)
    page.reload()
    wait_until(page, "window.studio?.isOpen")
    page.locator('.stage[data-phase="finished"] [data-act="edit:use"]').click()
    page.locator('.edit[data-way="paint"]:not([data-clip=""])').wait_for()
    wait_until(page, f"{PAINTED} > 0")
    assert page.evaluate(PAINTED) == pytest.approx(120 * 120, abs=240), "the regenerated area is painted"
    page.locator('.stage [data-act="again:same"]').click()
    wait_until(page, "job => document.querySelector('.stage').dataset.job !== job", job)
    page.locator('.stage[data-phase="finished"]').wait_for()
    again = page.locator(".stage").get_attribute("data-job")
    assert asked_for(data_dir, again)["keeps_pixels"] is False
    assert np.array_equal(np.asarray(Image.open(data_dir / "runs" / again / "mask.png").convert("L")), stored)
    assert (
        not page.locator("#edit-keeps").is_checked() and page.locator("#edit-prompt").input_value() == "everything but the left"
    )


def test_margins_are_seen_at_once_and_a_clip_continues(visit, clip, data_dir, pictures):
    page = visit()
    open_edit(page)
    taken(page, clip)
    choose(page, "widen")
    slide(page, "#edit-to", 1.06)
    assert page.locator("#edit-resolution").input_value() == "832x480"
    assert [page.locator(f"#edit-{side}").input_value() for side in ("left", "top", "right", "bottom")] == ["96", "0", "96", "0"]
    frame, inner = page.locator(".edit .clip").bounding_box(), page.locator("#edit-player").bounding_box()
    assert inner["width"] / frame["width"] == pytest.approx(640 / 832, abs=0.01)
    page.locator("#edit-left").fill("192")
    moved = page.locator("#edit-player").bounding_box()
    assert (moved["x"] - frame["x"]) / frame["width"] == pytest.approx(192 / 832, abs=0.01)
    page.locator("#edit-references").set_input_files(pictures[:2])
    page.locator(".tile:not(.add)").nth(1).wait_for()
    page.locator(".tile:not(.add)").nth(0).click()
    request = asked_for(data_dir, make(page, "a wider holiday"))
    assert request["margins"] == [192, 0, 96, 0] and len(request["references"]) == 1
    choose(page, "extend")
    page.locator("#edit-length").select_option("33")
    assert "frames of the clip up to 3" in page.locator("#edit-goes").inner_text()
    request = asked_for(data_dir, make(page, "and then"))
    assert (request["extend"], request["overlap"], request["num_frames"]) == ("after", 17, 33)
    assert request["trim"][1] == pytest.approx(4.0, abs=0.02) and "margins" not in request
    slide(page, "#edit-to", 3.5)
    assert "repeats 9 frames of the clip up to 3.49 s" in page.locator("#edit-goes").inner_text(), "its part may have any length"
    slide(page, "#edit-from", 1.0)
    choose(page, "follow")
    assert page.locator("#edit-part").inner_text().startswith("1.00 to"), "the part that was chosen stays"
    page.locator("#edit-kind").select_option("grey")
    request = asked_for(data_dir, make(page, "in other colours"))
    assert request["control_kind"] == "grey" and "video" not in request
    assert page.locator('.stage [data-act="compare:original"]').count() == 1


@pytest.mark.parametrize("width", [pytest.param(1440, marks=pytest.mark.slow), 390])
def test_key_frames_are_dropped_and_dragged_to_their_places(visit, pictures, data_dir, tmp_path, width):
    page = visit(width=width, height=900 if width > 760 else 844)
    open_edit(page)
    choose(page, "keys")
    page.locator("#edit-length").select_option("17")
    assert page.locator("#edit-make").is_disabled()
    page.locator("#edit-keys-first").set_input_files(pictures[:2])
    page.locator(".key").nth(1).wait_for()
    assert page.locator(".chosen output").inner_text() == "Frame 16 of 16, at 1.00 s"
    page.evaluate(DROP, [list(pictures[2].read_bytes()), "blue.png", 0.5])
    page.locator(".key").nth(2).wait_for()
    assert page.locator(".chosen output").inner_text() == "Frame 8 of 16, at 0.50 s"
    box, track = page.locator(".key").nth(2).bounding_box(), page.locator(".track").bounding_box()
    middle = (box["x"] + box["width"] / 2 - track["x"]) / track["width"]
    step = (track["width"] - box["width"]) / 16 / track["width"]
    Finger(page, ".track").line((middle, 0.3), (middle - 4 * step, 0.3))
    assert page.locator(".chosen output").inner_text() == "Frame 4 of 16, at 0.25 s"
    page.locator(".key").nth(2).focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".chosen output").inner_text() == "Frame 5 of 16, at 0.31 s"
    page.evaluate(DROP, [list(pictures[2].read_bytes()), "blue.png", 0.001])
    page.locator(".key").nth(3).wait_for()
    assert "went to the nearest free frame, 1" in page.locator(".edit > .note").inner_text(), "not two at one place"
    page.locator("#edit-key-remove").click()
    (tmp_path / "notes.txt").write_text("no picture")
    page.locator("#edit-keys").set_input_files(tmp_path / "notes.txt")
    wait_until(page, "document.querySelector('.edit > .note').innerText === 'Keyframes must be png, jpeg or webp images.'")
    choose(page, "anew")
    choose(page, "keys")
    job = make(page, f"from red over blue to green {width}")
    assert asked_for(data_dir, job)["keyframe_at"] == [0, 5, 16]
    colours = [Image.open(data_dir / "runs" / job / f"keyframes-{n}.png").convert("RGB").getpixel((5, 5)) for n in (1, 2, 3)]
    assert [max(range(3), key=colour.__getitem__) for colour in colours] == [0, 2, 1]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator('.stage [data-act="edit:use"]').click()
    wait_until(
        page,
        "document.querySelectorAll('.key').length === 3 && document.querySelector('.key img').src.includes('gradio_api/file=')",
    )
    assert page.locator("#edit-length").input_value() == "17"


def test_the_demo_model_continues_after_a_clip_and_its_last_frame_begins_another_video(visit, clip, data_dir):
    page = visit()
    open_edit(page)
    taken(page, clip)
    page.locator('[name="edit-way"][value="extend"]').check(force=True)
    assert page.locator("#edit-preset").input_value() == "wan-tiny"
    hidden = (".scale", ".references", ".strength", ".brush")
    assert not any(page.locator(f".edit {one}").is_visible() for one in hidden)
    assert page.locator('#edit-where option[value="before"]').is_disabled()
    page.locator("#edit-length").select_option("17")
    assert "repeats 9 frames of the clip up to 3.99 s" in page.locator("#edit-goes").inner_text()
    request = asked_for(data_dir, make(page, "and so on"))
    assert (request["extend"], request["overlap"], request["num_frames"], request["preset"]) == ("after", 9, 17, "wan-tiny")
    assert request["trim"][1] == pytest.approx(4.0, abs=0.02) and "strength" not in request
    page.locator('.stage [data-act="fill:continue"]').click()
    page.locator("#crop-preview img").wait_for()
    assert page.locator("#prompt textarea").input_value() == "and so on"


@pytest.mark.slow  # the demo model extends a clip above
def test_a_model_that_sounds_continues_from_the_end_of_its_video(visit, clip, data_dir):
    page = visit()
    open_edit(page)
    page.locator("#edit-preset").select_option(LTX)
    taken(page, clip)
    page.locator("#edit-resolution").select_option("768x512")
    slide(page, "#edit-to", 2.05)
    make(page, "rain on a tin roof")
    page.locator('.stage [data-act="edit:continue"]').click()
    page.locator('.edit[data-way="extend"]').wait_for()
    page.locator("#message .message.shown", has_text=ENGLISH.loaded_extend).wait_for()
    assert page.locator("#edit-preset").input_value() == LTX and page.locator("#edit-where").input_value() == "after"
    page.locator("#edit-length").select_option("49")
    offered = page.locator("#edit-overlap option:not([disabled])").evaluate_all("options => options.map(one => one.value)")
    assert offered == ["17", "9", "1"] and page.locator("#edit-overlap").input_value() == "17"
    request = asked_for(data_dir, make(page, "the rain stops"))
    assert (request["extend"], request["overlap"], request["num_frames"], request["preset"]) == ("after", 17, 49, LTX)
    assert request["trim"] == pytest.approx([0.0, 49 / 24], abs=1e-3)  # the whole video, to its last frame


@pytest.mark.slow  # another model has keyframes above
def test_key_frames_of_a_model_that_sounds(visit, pictures, data_dir):
    page = visit()
    open_edit(page)
    page.locator("#edit-preset").select_option(LTX)
    page.locator('.edit[data-way="sound"]').wait_for()
    assert page.locator("#edit-prompt").get_attribute("placeholder") == ENGLISH.edit_placeholder_sound
    page.locator('[name="edit-way"][value="keys"]').check(force=True)
    page.locator('.edit[data-way="keys"]').wait_for()
    assert page.locator("#edit-prompt").get_attribute("placeholder") == ENGLISH.edit_placeholder
    assert page.locator("#edit-preset").input_value() == LTX and not page.locator("#edit-references").is_visible()
    page.locator("#edit-length").select_option("49")
    page.locator("#edit-keys-first").set_input_files(pictures[:2])
    page.locator(".key").nth(1).wait_for()
    assert page.locator(".chosen output").inner_text() == "Frame 48 of 48, at 2.00 s"
    request = asked_for(data_dir, make(page, "a street musician, from red to green"))
    assert (request["preset"], request["keyframe_at"], request["num_frames"]) == (LTX, [0, 48], 49)


def test_a_clip_beside_the_video_is_followed_with_a_lora(visit, clip, data_dir):
    page = visit()
    open_edit(page)
    taken(page, clip)
    page.locator("#edit-preset").select_option(LTX)
    assert not page.locator(".scale").is_visible(), "of no meaning to a sound"
    page.locator('[name="edit-way"][value="follow"]').check(force=True)
    page.locator('.edit[data-way="follow"]').wait_for()
    scale = page.locator("#edit-scale")
    assert page.locator("#edit-preset").input_value() == LTX and (scale.get_attribute("min"), scale.get_attribute("max")) == (
        "0.05",
        "1",
    )
    slide(page, "#edit-scale", 0.8)
    page.locator("#edit-downscale").select_option("2")
    page.locator("#edit-kind").select_option("edges")
    slide(page, "#edit-to", 2.05)
    request = asked_for(data_dir, make(page, "a street musician"))
    assert (request["preset"], request["control_scale"], request["control_downscale"]) == (LTX, 0.8, 2)
    assert request["control_kind"] == "edges" and "video" not in request and request["num_frames"] == 49
    page.locator("#edit-preset").select_option(VACE)
    assert scale.get_attribute("max") == "2" and not page.locator("#edit-downscale").is_visible()


def test_settings_are_sent_and_come_back_with_their_video(visit, clip, data_dir):
    (data_dir / "loras").mkdir(exist_ok=True)
    (data_dir / "loras" / "style.safetensors").write_bytes(b"")
    page = visit()
    open_edit(page)
    page.locator("#edit-preset").select_option("wan-tiny")
    taken(page, clip)
    assert not page.locator("#edit-solver").is_visible()
    page.locator(".edit .more > summary").click()
    assert not page.locator('[data-setting="progressive"]').is_visible(), "the mode sets a clip"
    page.locator("#edit-solver").select_option("euler")
    page.locator("#edit-flow-shift").fill("5.5")
    page.locator("#edit-loras").fill("style.safetensors = 0.8")
    page.locator("#edit-upscale").fill("2")
    page.locator("#edit-fps").fill("8")
    page.locator("#edit-fps").blur()
    assert "17 frames at 8 per second, 2.13 s" in page.locator("#edit-part").inner_text()
    page.locator('[data-setting="upscale"] .about').click()
    assert ENGLISH.describe_setting("upscale") == page.locator('[data-setting="upscale"] .description').inner_text()
    page.keyboard.press("Escape")
    request = asked_for(data_dir, make(page, "a square with settings of its own"))
    expected = {"solver": "euler", "flow_shift": 5.5, "upscale": 2, "fps": 8, "steps": 4}
    assert request | expected == request and request["loras"][0]["source"] == "style.safetensors"
    page.locator("#edit-preset").select_option(VACE)
    assert page.locator("#edit-solver").input_value() == "euler", "a changed value stays, if the model offers it"
    assert page.locator("#edit-guidance").input_value() != "4" and page.locator("#edit-upscale").input_value() == "2"
    page.reload()
    wait_until(page, "window.studio?.isOpen")
    page.locator('.stage[data-phase="finished"] [data-act="edit:use"]').click()
    page.locator('.edit:not([data-clip=""])').wait_for()
    shown = {name: page.locator(f"#edit-{name}").input_value() for name in ("solver", "flow-shift", "loras", "upscale", "fps")}
    loras = {"loras": "style.safetensors = 0.8"}
    assert shown == {"solver": "euler", "flow-shift": "5.5", "upscale": "2", "fps": "8"} | loras
    assert "Not used here" not in page.locator("#message").inner_text()
    assert asked_for(data_dir, make(page, "the same settings again", steps=None)) | expected | {"loras": request["loras"]} == (
        asked_for(data_dir, page.locator(".stage").get_attribute("data-job"))
    )


def test_an_own_preset_fills_the_view(visit):
    page = visit()
    page.locator("#more > button").click()
    page.locator("#steps input[type=number]").fill("7")
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("seven")
    page.locator('[data-act="own:save"]').click()
    page.locator('[data-act="own:load"]', has_text="seven").wait_for()
    open_edit(page)
    page.locator(".edit .more > summary").click()
    page.locator(".edit .own summary").click()
    page.locator(".edit .own button", has_text="seven").click()
    assert page.locator("#edit-steps").input_value() == "7" and page.locator("#edit-preset").input_value() == "wan-tiny"
