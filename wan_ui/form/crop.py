"""What the form does with a visitor's picture: the crop's preview, where a click moves it, bars around it.

Opens strangers' files, so it runs in the sandbox and imports no Gradio. Results are plain values, or files.
"""

import base64
import io
from pathlib import Path

from PIL import Image

from backend.media.pictures import MAX_PIXELS, crop_box, crop_to, load_checked_image

PREVIEW_SIDE = 480  # pixels; more than the panel ever shows, and the page stays small
Size = tuple[int, int]


def encode_preview(path: str, size: Size, focus: tuple[float, float]) -> str:
    """The crop as a data address: it leaves no file behind, and nobody else can fetch it. Raises: ImageError."""
    crop, buffer = crop_to(load_checked_image(path), *_preview_size(size), focus), io.BytesIO()
    crop.save(buffer, "JPEG", quality=88)
    return encode_data_url(buffer.getvalue(), "jpeg")


def focus_at_point(path: str, point: tuple[int, int], size: Size) -> tuple[float, float]:
    """The focus that brings this pixel of the picture nearest to the middle of the crop. Raises: ImageError."""
    picture_size = load_checked_image(path).size
    left, top, right, bottom = crop_box(picture_size, size)
    room = (picture_size[0] - (right - left), picture_size[1] - (bottom - top))
    wanted = (point[0] - (right - left) / 2, point[1] - (bottom - top) / 2)
    across, down = (min(max(at / spare, 0.0), 1.0) if spare > 0 else 0.5 for at, spare in zip(wanted, room, strict=True))
    return across, down


def write_padded(path: str, size: Size, to: Path) -> None:
    """Writes the whole picture with bars, as `padded`. Raises: ImageError."""
    pad_to_aspect(load_checked_image(path), size).save(to, compress_level=1)


def pad_to_aspect(picture: Image.Image, size: Size) -> Image.Image:
    """The whole picture with black bars to the aspect of this size; made smaller only to stay within MAX_PIXELS."""
    scale = max(picture.width / size[0], picture.height / size[1])
    framed_pixels = size[0] * size[1] * scale**2
    if framed_pixels > MAX_PIXELS:  # a long thin picture in a square: its width would count twice
        picture, scale = _shrink(picture, (MAX_PIXELS / framed_pixels) ** 0.5), (MAX_PIXELS / (size[0] * size[1])) ** 0.5
    width, height = picture.size
    whole = (max(width, int(size[0] * scale)), max(height, int(size[1] * scale)))
    framed = Image.new("RGB", whole)
    framed.paste(picture, ((whole[0] - width) // 2, (whole[1] - height) // 2))
    return framed


def encode_data_url(picture: bytes, kind: str) -> str:
    """A picture of this kind ("jpeg") inside the page itself."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def _shrink(picture: Image.Image, share: float) -> Image.Image:
    """The picture with this share (0..1) of its width and height."""
    size = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _preview_size(size: Size) -> Size:
    scale = min(1.0, PREVIEW_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
