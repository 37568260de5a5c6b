"""Image operations of the form: crop an image for the preview, set the focus of the crop, and add bars.

These functions open untrusted files, so they run in the sandbox. They import no Gradio and return plain values or write files.
"""

import base64
import io
from pathlib import Path

from PIL import Image

from backend.media.pictures import MAX_PIXELS, crop_box, crop_to, load_checked_image

PREVIEW_SIDE = 480  # pixels; more than the panel shows, and few enough for a small page
Size = tuple[int, int]


def encode_preview(path: str, size: Size, focus: tuple[float, float]) -> str:
    """Return the crop as a data URL, which needs no file and which no other visitor can fetch. Raises: ImageError."""
    scale = min(1.0, PREVIEW_SIDE / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    crop, buffer = crop_to(load_checked_image(path), width, height, focus), io.BytesIO()
    crop.save(buffer, "JPEG", quality=88)
    return encode_data_url(buffer.getvalue(), "jpeg")


def focus_at_point(path: str, point: tuple[int, int], size: Size) -> tuple[float, float]:
    """Return the focus that brings this pixel of the image as near as possible to the centre of the crop. Raises: ImageError."""
    picture_size = load_checked_image(path).size
    left, top, right, bottom = crop_box(picture_size, size)
    room = (picture_size[0] - (right - left), picture_size[1] - (bottom - top))
    wanted = (point[0] - (right - left) / 2, point[1] - (bottom - top) / 2)
    across, down = (min(max(at / spare, 0.0), 1.0) if spare > 0 else 0.5 for at, spare in zip(wanted, room, strict=True))
    return across, down


def write_padded(path: str, size: Size, to: Path) -> None:
    """Write the whole image with bars (see `pad_to_aspect`). Raises: ImageError."""
    pad_to_aspect(load_checked_image(path), size).save(to, compress_level=1)


def pad_to_aspect(picture: Image.Image, size: Size) -> Image.Image:
    """Add black bars until the image has the aspect ratio of `size`. Shrink the image only if it would exceed MAX_PIXELS."""
    scale = max(picture.width / size[0], picture.height / size[1])
    framed_pixels = size[0] * size[1] * scale**2
    if framed_pixels > MAX_PIXELS:  # the bars around a long thin image can have many more pixels than the image
        share, scale = (MAX_PIXELS / framed_pixels) ** 0.5, (MAX_PIXELS / (size[0] * size[1])) ** 0.5
        shrunk = max(1, int(picture.width * share)), max(1, int(picture.height * share))
        picture = picture.resize(shrunk, Image.Resampling.LANCZOS)
    width, height = picture.size
    whole = (max(width, int(size[0] * scale)), max(height, int(size[1] * scale)))
    framed = Image.new("RGB", whole)
    framed.paste(picture, ((whole[0] - width) // 2, (whole[1] - height) // 2))
    return framed


def encode_data_url(picture: bytes, kind: str) -> str:
    """Encode an image of this kind ("jpeg") as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
