import shutil
from pathlib import Path

import pytest
from gradio.utils import get_upload_folder
from PIL import Image

from backend.errors import ImageError
from backend.media.pictures import MAX_PIXELS
from presets import load_preset
from wan_ui.form.crop import encode_preview, focus_at_point, pad_to_aspect
from wan_ui.form.picture import crop_preview_html, empty_preview_html, picture_examples_html, uploaded_picture
from wan_ui.i18n.english import ENGLISH


@pytest.fixture
def wide(tmp_path):
    path = tmp_path / "wide.png"
    Image.new("RGB", (400, 100), "red").save(path)
    return str(path)


def test_a_picture_is_shown_as_the_video_will_start(wide):
    preview = crop_preview_html(encode_preview(wide, (128, 96), (0.5, 0.5)), (128, 96), ENGLISH)
    assert "data:image/jpeg" in preview and "Crop to 128 × 96" in preview and "--ratio: 1.3333" in preview


def test_no_picture_is_an_empty_frame():
    assert "<img" not in empty_preview_html((128, 128), ENGLISH)


def test_a_file_that_is_no_picture_is_explained(tmp_path):
    path = tmp_path / "fake.png"
    path.write_text("I am a text file")
    with pytest.raises(ImageError, match="is a text file"):
        encode_preview(str(path), (128, 128), (0.5, 0.5))


@pytest.mark.parametrize(("point", "focus"), [((0, 50), (0.0, 0.5)), ((200, 9), (0.5, 0.5)), ((399, 50), (1.0, 0.5))])
def test_a_click_moves_the_crop_as_far_as_the_picture_goes(wide, point, focus):
    assert focus_at_point(wide, point, (128, 128)) == pytest.approx(focus)


def test_the_demo_models_example_pictures_exist_and_come_with_prompts():
    preset = load_preset("wan-tiny")
    assert len(preset.image_examples) >= 3
    html = picture_examples_html(preset, ENGLISH)
    assert all(example.prompt in html and example.path.is_file() for example in preset.image_examples)


def test_a_picture_is_one_that_was_uploaded_whatever_else_it_says(wide):
    folder = Path(get_upload_folder()) / "abc"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(wide, folder / "wide.png")
    assert uploaded_picture({"path": str(folder / "wide.png")}) == str((folder / "wide.png").resolve())
    assert uploaded_picture(None) is uploaded_picture(wide) is uploaded_picture([wide]) is None
    told = set()
    for path in (wide, "/nothing", "/etc", str(folder), str(folder / "nothing.png"), "a\0b", "x" * 5000, None, 5):
        with pytest.raises(ImageError) as error:
            uploaded_picture({"path": path, "meta": {"_type": "gradio.FileData"}})
        told.add(str(error.value))
    assert len(told) == 1


@pytest.mark.parametrize("size", [(12000, 16), (16, 12000), (32000, 16)])
@pytest.mark.parametrize("target", [(96, 96), (832, 480), (480, 832)])
def test_a_long_thin_picture_is_made_smaller_before_it_gets_its_bars(size, target):
    framed = pad_to_aspect(Image.new("RGB", size, "red"), target)
    assert framed.width * framed.height <= MAX_PIXELS
    assert framed.width / framed.height == pytest.approx(target[0] / target[1], rel=0.001)
    assert framed.getpixel((framed.width // 2, framed.height // 2)) == (255, 0, 0) and framed.getpixel((0, 0)) == (0, 0, 0)


def test_an_ordinary_picture_keeps_its_pixels_when_it_gets_bars(wide):
    framed = pad_to_aspect(Image.open(wide), (96, 96))
    assert framed.size == (400, 400) and framed.getbbox() == (0, 150, 400, 250)
