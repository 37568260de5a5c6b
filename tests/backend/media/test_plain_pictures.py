"""Pictures are stored unchanged, but without metadata of places, cameras and people, and never larger."""

from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, PngImagePlugin

from backend.engine.folder import write_inputs
from backend.media.pictures import load_checked_image
from backend.media.plain_pictures import strip_metadata
from tests.backend.conftest import request

SECRET = b"PLACE-OF-THE-PICTURE"


def noise(width: int = 301, height: int = 200) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 255, (height, width, 3), np.uint8))


def with_facts(path: Path, orientation: int = 6, **options: object) -> Path:
    """A rotated picture whose metadata has a location."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Artist] = SECRET.decode()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSAreaInformation] = SECRET
    noise().save(path, exif=exif, **options)
    return path


def kept(path: Path, folder: Path) -> Path:
    folder.mkdir()
    wanted = request(task="i2v", image=str(path))
    return Path(write_inputs(wanted, folder)["image"][0])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.jpg", {"quality": 80}),
        ("b.jpg", {"quality": 80, "progressive": True, "comment": SECRET, "xmp": SECRET, "icc_profile": b"profile"}),
        ("c.png", {"compress_level": 9}),
        ("d.webp", {"quality": 80, "xmp": SECRET}),
        ("e.webp", {"lossless": True}),
    ],
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_picture_is_stored_as_it_came_without_its_metadata(tmp_path, name, options, orientation):
    if name == "c.png":
        options = options | {"pnginfo": PngImagePlugin.PngInfo()}
        options["pnginfo"].add_text("Comment", SECRET.decode())
    source = with_facts(tmp_path / name, orientation, **options)
    assert SECRET in source.read_bytes()
    stored = kept(source, tmp_path / "kept")
    assert stored.suffix == source.suffix and stored.stat().st_size <= source.stat().st_size
    assert SECRET not in stored.read_bytes()
    before, after = (np.asarray(load_checked_image(path)) for path in (source, stored))
    assert before.shape == after.shape and (before == after).all() and (before.shape[0] > before.shape[1]) == (orientation == 6)
    with Image.open(stored) as image, Image.open(source) as original:
        assert image.info.get("icc_profile") == original.info.get("icc_profile")
        assert set(image.getexif()) <= {ExifTags.Base.Orientation}


def test_what_follows_a_jpeg_or_is_in_its_thumbnail_is_dropped(tmp_path):
    noise().save(tmp_path / "a.jpg", quality=80)
    data = (tmp_path / "a.jpg").read_bytes()
    thumbnail = b"\xff\xe0" + (16 + 3 * 9).to_bytes(2, "big") + b"JFIF\0\1\1\0\0\1\0\1\3\3" + SECRET + b"1234567"
    (tmp_path / "b.jpg").write_bytes(data[:2] + thumbnail + data[20:] + SECRET)
    stored = kept(tmp_path / "b.jpg", tmp_path / "kept")
    assert SECRET not in stored.read_bytes() and stored.read_bytes() == data


def test_other_pictures_are_stored_as_png(tmp_path):
    noise().save(tmp_path / "a.bmp")
    frames = [noise(), noise().rotate(180)]
    frames[0].save(tmp_path / "b.webp", save_all=True, append_images=frames[1:])
    for number, name in enumerate(("a.bmp", "b.webp")):
        assert strip_metadata(tmp_path / name) is None
        stored = kept(tmp_path / name, tmp_path / f"kept {number}")
        assert stored.suffix == ".png" and load_checked_image(stored).size == (301, 200)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_a_damaged_picture_is_copied_by_nobody(tmp_path, name):
    noise().save(tmp_path / name)
    data = bytearray((tmp_path / name).read_bytes())
    for cut in range(0, len(data), len(data) // 50):
        (tmp_path / name).write_bytes(data[:cut] + b"\x00\xff" * 20)
        found = strip_metadata(tmp_path / name)
        assert found is None or len(found[0]) <= cut + 60
