"""The errors of the client. All are `StudioError`."""

from collections.abc import Mapping, Sequence
from typing import Any


class StudioError(Exception):
    """The server cannot be started or reached, or an answer is not from a studio."""


class RequestRefused(StudioError):
    """The server refused a request. The message states what was given, what is allowed and what to do.

    `status` is the HTTP status. `param` is the refused setting and `code` the kind of the error, None if unknown.
    """

    def __init__(self, message: str, status: int, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class VideoFailed(StudioError):
    """The video could not be generated.

    If memory ran out, `would_fit` has smaller settings that fit, each with `width`, `height`, `num_frames` and
    `bytes_per_device`.
    """

    def __init__(self, message: str, would_fit: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.would_fit = tuple(would_fit)


class VideoCancelled(StudioError):
    """The video was stopped before it was finished."""
