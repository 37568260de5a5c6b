"""The file formats to which a video can be exported."""

from typing import Literal, get_args

Format = Literal["webm", "gif", "webp", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
BOUNDED: tuple[Format, ...] = ("gif", "webp")
"""Formats whose files grow large quickly and are sent to places that accept a few megabytes. Exports can be fitted to a size
limit."""

SUFFIXES = {"webm": ".webm", "gif": ".gif", "webp": ".webp", "png": ".zip"}
MEDIA_TYPES = {"webm": "video/webm", "gif": "image/gif", "webp": "image/webp", "png": "application/zip"}
