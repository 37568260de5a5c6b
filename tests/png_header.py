"""A small PNG file that claims any size."""

import struct
import zlib


def png_claiming(width: int, height: int) -> bytes:
    """Return only the header of a PNG. Decoding fails because the file is truncated."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
