"""Copies JPEG, PNG and WebP images without their metadata: places, cameras, comments, thumbnails. The image data is not encoded
again, so a copy is never larger than its source. Only the orientation and the colour profile are kept. Sources of the formats:
ITU-T T.81, annex B; W3C Portable Network Graphics, section 5; Google's WebP container specification."""

import re
import zlib
from pathlib import Path

from PIL import ExifTags, Image

from backend.media.pictures import BROKEN, FORMATS, is_animation

_END_OF_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT"}
_WEBP_CHUNKS = {b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP"}
_WEBP_ICC, _WEBP_ALPHA, _WEBP_EXIF = 0x20, 0x10, 0x08


def strip_metadata(path: Path) -> tuple[bytes, str] | None:
    """Return (bytes, suffix), None for other formats, animations and files of an unusual structure."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            kind, is_moving = image.format, is_animation(image)
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        data = path.read_bytes()
        orientation = orientation if isinstance(orientation, int) and 1 < orientation <= 8 else 1
        if kind in ("JPEG", "MPO"):
            return _strip_jpeg(data, orientation), ".jpg"
        if kind == "PNG":
            return _strip_png(data, orientation), ".png"
        if kind == "WEBP" and not is_moving:
            return _strip_webp(data, orientation), ".webp"
    except (*BROKEN, Image.DecompressionBombError):
        pass
    return None


def _strip_jpeg(data: bytes, orientation: int) -> bytes:
    """A JFIF segment loses its thumbnail. Comments and other application segments become empty, except the colour profile and
    Adobe's colour transform. All other segments stay unchanged."""
    kept, place = [b"\xff\xd8"], 2
    while True:
        marker = data[place + 1]
        if data[place] != 0xFF:
            raise ValueError("no marker")
        if marker == 0xFF:  # a fill byte between segments
            place += 1
            continue
        if marker == 0xD9:
            return b"".join([*kept, b"\xff\xd9"])
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        segment = data[place:end]
        is_application = 0xE0 <= marker <= 0xEF or marker == 0xFE
        if marker == 0xE0 and segment[4:9] == b"JFIF\0" and len(segment) >= 18:
            kept.append(b"\xff\xe0\x00\x10" + segment[4:16] + b"\x00\x00")
        elif not is_application or marker == 0xEE or marker == 0xE2 and segment[4:16] == b"ICC_PROFILE\0":
            kept.append(segment)
        else:
            kept.append(b"")
        if len(kept) == 2 and orientation != 1:  # follows the first segment, because a JFIF segment must be the first
            body = b"Exif\x00\x00" + _orientation_tiff(orientation)
            kept.append(b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body)
        if marker == 0xDA:
            scan = _END_OF_SCAN.search(data, end)
            if scan is None:
                raise ValueError("no end")
            kept.append(data[end : scan.start()])
            end = scan.start()
        place = end


def _orientation_tiff(orientation: int) -> bytes:
    """Exif data that contains only the orientation."""
    entry = b"\x12\x01\x03\x00\x01\x00\x00\x00" + orientation.to_bytes(4, "little")
    return b"II*\x00\x08\x00\x00\x00\x01\x00" + entry + b"\x00\x00\x00\x00"


def _strip_png(data: bytes, orientation: int) -> bytes:
    kept, place = [_PNG], len(_PNG)
    while place < len(data):
        size, name = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        end = place + 12 + size
        if name in _PNG_CHUNKS:
            kept.append(data[place:end])
        if name == b"IHDR" and orientation != 1:
            body = b"eXIf" + _orientation_tiff(orientation)
            kept.append((len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big"))
        if name == b"IEND":
            return b"".join(kept)
        place = end
    raise ValueError("no end")


def _strip_webp(data: bytes, orientation: int) -> bytes:
    kept, place, total = [], 12, 8 + int.from_bytes(data[4:8], "little")
    while place + 8 <= min(len(data), total):
        size, name = int.from_bytes(data[place + 4 : place + 8], "little"), data[place : place + 4]
        end = place + 8 + size + size % 2
        if name == b"VP8X":
            flags = data[place + 8] & (_WEBP_ICC | _WEBP_ALPHA) | (_WEBP_EXIF if orientation != 1 else 0)
            kept.append(data[place : place + 8] + bytes([flags]) + data[place + 9 : end])
        elif name in _WEBP_CHUNKS:
            kept.append(data[place:end])
        place = end
    if orientation != 1:
        body = _orientation_tiff(orientation)
        kept.append(b"EXIF" + len(body).to_bytes(4, "little") + body)
    whole = b"WEBP" + b"".join(kept)
    return b"RIFF" + len(whole).to_bytes(4, "little") + whole
