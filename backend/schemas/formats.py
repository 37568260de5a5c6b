"""The file formats to which a video can be exported."""

from typing import Literal, get_args

Format = Literal["webm", "gif", "webp", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
BOUNDED: tuple[Format, ...] = ("gif", "webp")
"""Formats of large files that users often send to services with a limit of a few megabytes. Exports in these formats can be made
to fit a size limit."""

SUFFIXES = {"webm": ".webm", "gif": ".gif", "webp": ".webp", "png": ".zip"}
MEDIA_TYPES = {"webm": "video/webm", "gif": "image/gif", "webp": "image/webp", "png": "application/zip"}
