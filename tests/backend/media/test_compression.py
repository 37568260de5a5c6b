"""H.264 makes a picture a little worse, more so at a higher rate factor, and the same each time."""

import numpy as np
import pytest
from PIL import Image

from backend.media.pictures import compress_image


@pytest.fixture
def picture() -> Image.Image:
    rows, columns = np.mgrid[:96, :128]
    noise = np.random.default_rng(0).integers(0, 40, (96, 128, 3))
    return Image.fromarray((np.stack([rows, columns, rows + columns], -1) + noise).astype(np.uint8))


def psnr(one: Image.Image, other: Image.Image) -> float:
    return 10 * np.log10(255**2 / np.square(np.asarray(one, float) - np.asarray(other, float)).mean())


def test_stronger_compression_makes_it_worse(picture):
    assert compress_image(picture, 0) is picture
    found = [psnr(picture, compress_image(picture, crf)) for crf in (1, 18, 33)]
    assert found == sorted(found, reverse=True) and 20 < found[2] < 32 and compress_image(picture, 33).size == picture.size
    np.testing.assert_array_equal(compress_image(picture, 33), compress_image(picture, 33))
