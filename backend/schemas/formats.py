"""The kinds of files as which a video can be exported."""

from typing import Literal, get_args

Format = Literal["webm", "gif", "webp", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
BOUNDED: tuple[Format, ...] = ("gif", "webp")
"""Those that grow large soon, and are sent to places that take a few megabytes: they can be made to fit a number of bytes."""

SUFFIXES = {"webm": ".webm", "gif": ".gif", "webp": ".webp", "png": ".zip"}
MEDIA_TYPES = {"webm": "video/webm", "gif": "image/gif", "webp": "image/webp", "png": "application/zip"}
