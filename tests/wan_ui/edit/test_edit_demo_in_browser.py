"""Tests of Edit with the demo models, in a real Chromium.

Restyle changes a shape in place, and the same request gives the same pixels. Inpaint changes the masked area only.
"""

import numpy as np
import pytest

from backend.media.clips import read_part
from backend.media.masks import read_mask
from backend.media.video import read_frames
from backend.schemas.clip import Part
from tests.clip_files import counting_clip, run_ffmpeg
from tests.wan_ui.edit.test_edit_in_browser import make, open_edit, taken
from tests.wan_ui.steps import made, wait_until

ONLY_DEMO = pytest.mark.parametrize("every_studio", [pytest.param("demo", marks=pytest.mark.demo_model)], indirect=True)
pytestmark = [pytest.mark.browser, ONLY_DEMO]


@pytest.fixture(scope="module")
def studio(every_studio):
    return every_studio


@pytest.fixture
def clip(tmp_path):
    """Return a clip of a red disc that moves right on black: 48 frames at 24 fps, 192 x 96 pixels."""
    rows, columns = np.mgrid[:96, :192]
    frames = []
    for index in range(48):
        inside = (rows - 48) ** 2 + (columns - 60 - index) ** 2 < 16**2
        frames.append(np.where(inside[..., None], (230, 40, 40), (0, 0, 0)).astype(np.uint8))
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", "192x96", "-framerate", "24", "-i", "-"]
    path = tmp_path / "disc.mp4"
    run_ffmpeg(*raw, "-c:v", "libx264", "-crf", "6", "-pix_fmt", "yuv420p", str(path), given=np.stack(frames).tobytes())
    return path


@pytest.mark.slow  # faster: tests/wan_ui/stage upscales a video of the pretend pipeline
def test_a_demo_video_and_a_clip_become_larger_and_play(visit, tmp_path):
    page = visit()
    made(page, "a red circle moving right on a black background", steps=4)
    wait_until(page, "document.querySelector('.stage video').videoWidth === 96")
    page.locator(".stage .menu.upscale summary").click()
    assert page.locator(".stage .menu.upscale button").first.inner_text().startswith("2× animevideov3 · 192 × 192")
    page.locator('.stage [data-act="again:upscale"][data-value="4:animevideov3"]').click()
    wait_until(page, "document.querySelector('.stage video').videoWidth === 384")
    wait_until(page, "document.querySelector('.stage video').currentTime > 0.1")
    assert "4× by animevideov3, from 96 × 96" in page.locator(".stage .facts").inner_text()
    assert page.locator(".stage .menu.upscale").count() == 0  # the video is upscaled already
    open_edit(page)
    taken(page, counting_clip(tmp_path / "clip.mp4", 20, 16, (64, 48)))
    page.locator("#edit-upscale-clip").click()
    wait_until(page, "document.querySelector('.stage video').videoWidth === 128")
    assert page.locator('.stage [data-act="again:seed"]').count() == 0  # no model generated this video


def pixels(page, tmp_path) -> np.ndarray:
    answer = page.request.get(page.locator(".stage video").evaluate("video => video.src"))
    path = tmp_path / "fetched.mp4"
    path.write_bytes(answer.body())
    return np.stack(list(read_frames(path))).astype(int)


def middle(frame: np.ndarray) -> float:
    """Return the horizontal centre of the bright shape, as a fraction of the width."""
    lit = frame.max(axis=2) > 110
    return float(np.nonzero(lit)[1].mean()) / frame.shape[1]


@pytest.mark.slow  # faster: test_modes_in_browser.py extends a clip with the demo model, tests/parity compares Restyle
def test_the_disc_becomes_blue_where_it_was_and_the_same_again_has_the_same_pixels(visit, clip, tmp_path):
    page = visit()
    open_edit(page)
    taken(page, clip)
    page.locator("#edit-strength").fill("0.85")
    page.locator("#edit-seed").fill("5")
    job = make(page, "a blue circle moving right on a black background", steps=None)
    size = page.locator(".stage .facts").inner_text()
    assert "128 × 96" in size
    first = pixels(page, tmp_path)
    whole = read_part(clip, Part(start=0.0, num_frames=17, fps=16, size=(128, 96))).astype(int)
    assert first[8, ..., 2].max() > first[8, ..., 0].max() + 40, "it is blue"
    assert abs(middle(first[8]) - middle(whole[8])) < 0.16, "and near the place where it was: measured 0.12 at 0.9"
    page.locator('.stage [data-act="again:same"]').click()
    wait_until(page, "job => document.querySelector('.stage').dataset.job !== job", job)
    page.locator('.stage[data-phase="finished"]').wait_for()
    np.testing.assert_array_equal(first, pixels(page, tmp_path))


@pytest.mark.slow  # tests/training/test_vace.py fills a box with the same model
def test_what_is_painted_over_becomes_blue_and_the_rest_stays(visit, studio, clip, tmp_path):
    page = visit()
    open_edit(page)
    taken(page, clip)
    page.locator('[name="edit-way"][value="paint"]').check(force=True)
    assert page.locator("#edit-preset").input_value() == "wan-tiny-vace"
    page.locator("#edit-brush-size").fill("40")
    page.locator("#edit-seed").fill("5")
    canvas = page.locator("#edit-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for height in (0.35, 0.5, 0.65):
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + height * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + height * box["height"], steps=4)
        page.mouse.up()
    job = make(page, "a small blue circle moving right on a black background", steps=None)
    made = pixels(page, tmp_path)
    own = read_part(clip, Part(start=0.0, num_frames=17, fps=16, size=made.shape[2:0:-1])).astype(int)
    painted = tmp_path / "painted.png"
    painted.write_bytes(page.request.get(f"{studio.url}studio/media/{job}/mask.png").body())
    mask = read_mask(painted, Part(start=0.0, num_frames=1, fps=16, size=made.shape[2:0:-1]))[0]
    assert 0.2 < mask.mean() < 0.7
    assert made[8][mask][:, 2].max() > made[8][mask][:, 0].max() + 40, "it is blue"
    error = np.square((made - own)[:, ~mask]).mean()
    assert 10 * np.log10(255**2 / max(error, 1e-9)) >= 35
