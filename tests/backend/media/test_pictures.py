"""Check untrusted images: each unusable file has its own message, each usable file becomes upright and RGB."""

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageOps

from backend.errors import ImageError
from backend.media.pictures import ROWS_AT_ONCE, crop_box, crop_to, load_checked_image
from tests.png_header import png_claiming

PEAK = r"""
import re, sys
from pathlib import Path
from backend.media.pictures import load_checked_image
def print_peak(): print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
print_peak()
load_checked_image(sys.argv[1])
print_peak()
"""  # prints the largest resident kilobytes before and after


def noise(width: int = 64, height: int = 48) -> Image.Image:
    return Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=numpy.uint8))


def refusal(path: Path) -> str:
    with pytest.raises(ImageError) as caught:
        load_checked_image(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_file(tmp_path):
    assert refusal(tmp_path / "no.png") == "image 'no.png' must be a file, but no file is at that path; check the path"


@pytest.mark.parametrize("name", ["x" * 300 + ".png", "a\0b.png"])
def test_a_name_that_cannot_be(tmp_path, name):
    assert "no file is at that path" in refusal(tmp_path / name)


def test_a_folder(tmp_path):
    assert "this is a folder or a device" in refusal(tmp_path)


def test_an_empty_file(tmp_path):
    (tmp_path / "a.png").touch()
    assert "this file is empty" in refusal(tmp_path / "a.png")


@pytest.mark.parametrize("text", ["just words\n", "größer, 円\n", '{"a": 1}'])
def test_a_text_file(tmp_path, text):
    (tmp_path / "a.png").write_text(text, encoding="utf-8")
    assert refusal(tmp_path / "a.png").startswith("image 'a.png' is a text file and must be a picture (PNG, JPEG")


def test_some_other_file(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x7fELF\0\0\1\2\3")
    assert refusal(tmp_path / "a.png").startswith("image 'a.png' is something else and must be a picture")


@pytest.mark.parametrize("share", [0.002, 0.02, 0.5, 0.98])
@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_a_truncated_picture(tmp_path, kind, share):
    path = tmp_path / f"a.{kind}"
    noise(200, 150).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(12, int(len(whole) * share))])
    assert refusal(path).startswith(f"image 'a.{kind}' is damaged or cut short and must be a whole picture")


def test_a_picture_with_a_flipped_byte(tmp_path):
    path = tmp_path / "a.png"
    noise().save(path)
    spoilt = bytearray(path.read_bytes())
    spoilt[len(spoilt) // 2] ^= 0xFF
    path.write_bytes(spoilt)
    assert "is damaged" in refusal(path)


@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (10_000, 10_000), (8_000, 7_000), (60_000, 1_000)])
def test_too_many_pixels_are_refused_from_the_header(tmp_path, width, height):
    path = tmp_path / "big.png"
    path.write_bytes(png_claiming(width, height))
    message = refusal(path)
    assert "is too large" in message and "must have at most 50,000,000 pixels" in message


def test_hardly_any_pixels_are_refused(tmp_path):
    noise(15, 40).save(tmp_path / "a.png")
    assert "has 15x40 pixels and must have at least 16 on each side" in refusal(tmp_path / "a.png")


def test_pixels_of_unknown_range_are_refused(tmp_path):
    Image.fromarray(numpy.ones((20, 20), numpy.float32)).save(tmp_path / "a.tiff")
    assert "must have 8 or 16 bits a channel" in refusal(tmp_path / "a.tiff")


def test_the_camera_was_turned(tmp_path):
    image = Image.new("RGB", (40, 20), "blue")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was on its side
    image.paste("red", (0, 0, 10, 20))
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    upright = load_checked_image(tmp_path / "a.jpg")
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 2))[0] > 200 and upright.getpixel((10, 38))[2] > 200


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_transparency_is_laid_on_white(tmp_path, mode):
    image = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 10, 20))
    path = tmp_path / ("a.tiff" if mode == "PA" else "a.png")
    (image if mode == "RGBA" else image.convert("LA") if mode in ("LA", "PA") else image.quantize(4)).save(path)
    flat = load_checked_image(path)
    assert (flat.mode, flat.getpixel((2, 2)), flat.getpixel((15, 2))) == ("RGB", (0, 0, 0), (255, 255, 255))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "RGB"])
def test_on_white_is_what_pillow_makes_of_a_whole_copy(tmp_path, mode):
    pixels = numpy.random.default_rng(1).integers(0, 256, (ROWS_AT_ONCE + 9, 40, 4), numpy.uint8)
    image, path = Image.fromarray(pixels, "RGBA"), tmp_path / ("a.tiff" if mode == "PA" else "a.png")
    if mode == "P":
        image = image.quantize(64)
    elif mode == "RGB":
        image = image.convert("RGB")
        image.info["transparency"] = image.getpixel((3, 3))
    elif mode != "RGBA":
        image = image.convert("LA")
    image.save(path)
    with Image.open(path) as saved:
        whole = Image.alpha_composite(Image.new("RGBA", saved.size, "white"), saved.convert("RGBA")).convert("RGB")
    flat = load_checked_image(path)
    assert flat.mode == "RGB" and flat.tobytes() == whole.tobytes()
    assert numpy.array_equal(numpy.asarray(flat.resize((20, 20))), numpy.asarray(whole.resize((20, 20))))


@pytest.mark.parametrize("mode", ["RGBA", "RGB", "animation"])
def test_a_webp_is_what_pillow_loads(tmp_path, mode):
    image, exif = noise(40, 30).convert("RGBA"), Image.Exif()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    exif[0x0112] = 6  # the camera was on its side
    more = {"save_all": True, "append_images": [Image.new("RGBA", image.size, "red")]} if mode == "animation" else {}
    (image.convert("RGB") if mode == "RGB" else image).save(tmp_path / "a.webp", lossless=True, exact=True, exif=exif, **more)
    with Image.open(tmp_path / "a.webp") as saved:
        saved.load()
        turned = ImageOps.exif_transpose(saved).convert("RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned).convert("RGB")
    flat = load_checked_image(tmp_path / "a.webp")
    assert (flat.mode, flat.size, flat.tobytes()) == ("RGB", (30, 40), whole.tobytes())


def test_a_transparent_webp_takes_three_copies_of_its_pixels(tmp_path):
    """Pillow's decoder needs these three. Pillow's own `load` takes at least four."""
    Image.new("RGBA", (4000, 3000), (255, 0, 0, 100)).save(tmp_path / "a.webp", lossless=True, quality=0, method=0)
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path / "a.webp")], capture_output=True, text=True, check=True)
    before, peak = map(int, done.stdout.split())
    assert 1024 * (peak - before) < 3.6 * 4 * 4000 * 3000


def test_sixteen_bits_keep_their_brightness(tmp_path):
    Image.fromarray(numpy.full((20, 20), 32896, numpy.uint16)).save(tmp_path / "a.png")
    assert load_checked_image(tmp_path / "a.png").getpixel((3, 3)) == (128, 128, 128)


@pytest.mark.parametrize(("mode", "name"), [("CMYK", "a.jpg"), ("L", "a.png"), ("1", "a.png"), ("P", "a.gif"), ("RGB", "a.bmp")])
def test_every_ordinary_mode_becomes_rgb(tmp_path, mode, name):
    Image.new("RGB", (20, 20), "white").convert(mode).save(tmp_path / name)
    image = load_checked_image(tmp_path / name)
    assert image.mode == "RGB" and min(image.getpixel((5, 5))) > 250


def test_the_first_picture_of_an_animation_counts(tmp_path):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert load_checked_image(tmp_path / "a.gif").getpixel((5, 5)) == (255, 0, 0)


def halves() -> Image.Image:
    image = Image.new("RGB", (200, 100), "blue")
    image.paste("red", (0, 0, 100, 100))
    return image


@pytest.mark.parametrize(
    ("focus", "left", "right"), [((0, 0.5), "red", "red"), ((1, 0.5), "blue", "blue"), ((0.5, 0.5), "red", "blue")]
)
def test_the_focus_decides_what_a_crop_keeps(focus, left, right):
    cropped = crop_to(halves(), 96, 96, focus)
    assert cropped.size == (96, 96) and cropped.mode == "RGB"
    assert cropped.getpixel((4, 48)) == Image.new("RGB", (1, 1), left).getpixel((0, 0))
    assert cropped.getpixel((91, 48)) == Image.new("RGB", (1, 1), right).getpixel((0, 0))


@pytest.mark.parametrize("size", [(200, 100), (37, 911), (16, 16), (1920, 1080), (333, 334)])
@pytest.mark.parametrize("target", [(128, 128), (832, 480), (96, 128)])
def test_a_crop_lies_inside_and_has_the_targets_aspect(size, target):
    left, top, right, bottom = crop_box(size, target, (0.3, 1.0))
    assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    assert (right - left) / (bottom - top) == pytest.approx(target[0] / target[1])
    assert right - left == pytest.approx(size[0]) or bottom - top == pytest.approx(size[1])


def test_a_picture_of_the_right_size_is_left_alone():
    image = noise(128, 96)
    assert crop_to(image, 128, 96).tobytes() == image.tobytes()
