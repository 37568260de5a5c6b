"""Opens untrusted images: refuses unusable files, and returns all others as upright opaque RGB. Also compresses images."""

import os
import struct
import subprocess
import warnings
import zlib
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.WebPImagePlugin import WebPImageFile

from backend.errors import ImageError
from backend.media import ffmpeg

# Larger images are refused, because a decoded image takes 4 bytes per pixel: 200 MB at this limit. It allows 8660 x 5773 pixels,
# more than any camera phone takes in its ordinary mode.
MAX_PIXELS = 50_000_000
MIN_SIDE = 16  # pixels: images with a shorter side are refused, because they show nothing useful
ROWS_AT_ONCE = 256
COMPRESSION_SECONDS = 60.0  # time limit for ffmpeg: even a busy machine needs far less for one frame
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)
"""Pillow's exceptions for files that are damaged or malicious."""
# The rule and the fix of two errors.
_TOO_LARGE = (f"must have at most {MAX_PIXELS:,} pixels, such as 8000x6000", "make it smaller: a video needs far fewer")
_DAMAGED = ("must be a whole picture", "copy or download it again, or open and save it in an image editor")

Box = tuple[float, float, float, float]


def load_checked_image(path: str | Path) -> Image.Image:
    """Load the image, or the first frame of an animation, as upright RGB, with transparent parts on white. Raises: ImageError,
    with a separate message for each reason why a file cannot be used."""
    path = Path(path)
    if not os.path.exists(path):  # os.path.exists accepts names of any length, unlike Path.exists
        raise ImageError(f"image {path.name!r}", "must be a file, but no file is at that path", "check the path")
    if not path.is_file():
        raise ImageError(f"image {path.name!r}", "must be a file, and this is a folder or a device", "give a picture")
    if path.stat().st_size == 0:
        raise ImageError(f"image {path.name!r}", "must be a picture, and this file is empty", "give another file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about sizes that this module refuses, and about unusual metadata
        with _open_header(path) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                what = f"image {path.name!r} is too large ({width}x{height}, more than {MAX_PIXELS:,} pixels) and"
                raise ImageError(what, *_TOO_LARGE)
            if min(width, height) < MIN_SIDE:
                what = f"image {path.name!r} has {width}x{height} pixels and"
                raise ImageError(what, f"must have at least {MIN_SIDE} on each side", "give a larger picture")
            return _to_opaque_rgb(_decode(image, path), path)


def is_animation(image: Image.Image) -> bool:
    """The file stays at the first frame."""
    try:
        image.seek(1)
    except EOFError:
        return False
    image.seek(0)
    return True


def crop_to(image: Image.Image, width: int, height: int, focus: tuple[float, float] = (0.5, 0.5)) -> Image.Image:
    """Crop the image to the aspect of width x height, then resize it (Lanczos), RGB."""
    box = crop_box(image.size, (width, height), focus)
    return to_rgb(image).resize((width, height), Image.Resampling.LANCZOS, box=box)


def fit_on_white(image: Image.Image, width: int, height: int) -> Image.Image:
    """Fit the whole image into width x height white pixels, centred and as large as possible (Lanczos), RGB."""
    scale = min(width / image.width, height / image.height)
    size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
    canvas = Image.new("RGB", (width, height), "white")
    canvas.paste(to_rgb(image).resize(size, Image.Resampling.LANCZOS), ((width - size[0]) // 2, (height - size[1]) // 2))
    return canvas


def to_rgb(image: Image.Image) -> Image.Image:
    """Pillow's conversion would copy an RGB image."""
    return image if image.mode == "RGB" else image.convert("RGB")


def crop_box(size: tuple[int, int], target: tuple[int, int], focus: tuple[float, float] = (0.5, 0.5)) -> Box:
    """Return the largest part of an image of `size` that has the aspect of `target`, as (left, top, right, bottom) in pixels.
    `focus` in 0..1 is its position: 0 at the left or top, 1 at the right or bottom."""
    scale = min(size[0] / target[0], size[1] / target[1])
    width, height = min(target[0] * scale, size[0]), min(target[1] * scale, size[1])
    left, top = (size[0] - width) * focus[0], (size[1] - height) * focus[1]
    return (left, top, min(left + width, size[0]), min(top + height, size[1]))


def _open_header(path: Path) -> Image.Image:
    try:
        return Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError:
        what = f"image {path.name!r} is too large (far more than {MAX_PIXELS:,} pixels) and"
        raise ImageError(what, *_TOO_LARGE) from None
    except PermissionError:
        raise ImageError(f"image {path.name!r}", "must be readable, and is not", "change its permissions") from None
    except UnidentifiedImageError:
        with path.open("rb") as file:
            beginning = file.read(4096)
        if beginning.startswith(_BEGINNINGS):
            raise ImageError(f"image {path.name!r} is damaged or cut short and", *_DAMAGED) from None
        is_text = not any(byte < 32 and byte not in b"\t\n\r\f" for byte in beginning)
        what = f"image {path.name!r} is {'a text file' if is_text else 'something else'} and"
        raise ImageError(what, f"must be a picture ({', '.join(FORMATS)})", "choose another file") from None
    except BROKEN:
        raise ImageError(f"image {path.name!r} is damaged or cut short and", *_DAMAGED) from None


def _decode(image: Image.Image, path: Path) -> Image.Image:
    try:
        if isinstance(image, WebPImageFile):
            # Pillow's decoder holds two copies of the frame, and its `load` makes two more while the decoder exists. So the
            # decoder is freed first. `image` becomes unusable.
            pixels, *_ = image._get_next()
            image._decoder = None
            frame = Image.frombytes(image.mode, image.size, pixels, "raw", image.rawmode)
            del pixels
            frame.info = image.info
            image = frame
        else:
            image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return image
    except BROKEN:
        raise ImageError(f"image {path.name!r} is damaged or cut short and", *_DAMAGED) from None


def _to_opaque_rgb(image: Image.Image, path: Path) -> Image.Image:
    """`image` may become unusable."""
    if image.mode == "F" or image.mode == "I" and cast(tuple[int, int], image.getextrema())[1] > 65535:
        what = f"image {path.name!r} has {image.mode}-type pixels of unknown range and"
        raise ImageError(what, "must have 8 or 16 bits a channel", "save it as an ordinary PNG")
    if image.mode.startswith("I"):  # one channel of 16 bits, which is reduced to 8 bits
        grey = np.asarray(image, dtype=np.float32) / 257 + 0.5
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return to_rgb(image)
    # Pillow stores four bytes per pixel for every colour image, so a copy of a large image takes 200 MB. Therefore the image is
    # changed a few rows at a time, and in place if possible.
    if image.mode == "LA":
        grey, alpha = image.getchannel("L"), image.getchannel("A")
        image.close()
        grey.paste(255, mask=alpha.point(lambda value: 255 - value))
        return grey.convert("RGB")
    opaque = image if image.mode == "RGBA" else Image.new("RGBA", image.size)
    for top in range(0, image.height, ROWS_AT_ONCE):
        part = image.crop((0, top, image.width, min(top + ROWS_AT_ONCE, image.height))).convert("RGBA")
        white = Image.new("RGBA", part.size, "white")
        white.alpha_composite(part)
        opaque.paste(white, (0, top))
    opaque.im.setmode("RGB")  # opaque.convert("RGB") would copy the image
    opaque._mode = "RGB"
    return opaque


def compress_image(picture: Image.Image, crf: int) -> Image.Image:
    """Return the RGB image, of even width and height, as it is after H.264 at the constant rate factor `crf`, 0 for none. Some
    models were trained on frames of compressed videos, and expect the same artifacts in first images. Raises: ImageError if
    ffmpeg fails. Source: diffusers, `pipelines/ltx2/utils.py`, `apply_image_conditioning_crf`: one frame, preset veryfast,
    yuv420p."""
    if crf == 0:
        return picture
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24"]
    encoding = ["-c:v", "libx264", "-preset", "veryfast", "-crf", str(crf), "-pix_fmt", "yuv420p", "-threads", "1"]
    size = ["-s", f"{picture.width}x{picture.height}"]
    data = np.asarray(picture).tobytes()
    for arguments in (
        [*raw, *size, "-r", "1", "-i", "-", *encoding, "-f", "h264", "-"],
        ["-f", "h264", "-i", "-", "-frames:v", "1", *raw, "-"],
    ):
        line = ffmpeg.command(*arguments)
        with ffmpeg.running_process(line, stdin=subprocess.PIPE) as process, ffmpeg.time_limit(COMPRESSION_SECONDS, process):
            data, _ = process.communicate(data)
    if len(data) != picture.width * picture.height * 3:
        raise ImageError("the first frame could not be compressed", "as the model expects it", "set image_crf to 0")
    return Image.fromarray(np.frombuffer(data, np.uint8).reshape(picture.height, picture.width, 3))
