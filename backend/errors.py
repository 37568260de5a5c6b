"""The errors of the studio. Each error states on one line what was given, what is allowed and what to do."""

import re
import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


class StudioError(Exception):
    """Any failure that the studio can explain.

    `what` is the wrong value or the event, `allowed` the rule that it breaks, and `fix` the suggested action.
    """

    def __init__(self, what: str, allowed: str = "", fix: str = ""):
        self.what, self.allowed, self.fix = (one_line(part) for part in (what, allowed, fix))
        super().__init__(self.what, self.allowed, self.fix)

    def __str__(self) -> str:
        return f"{self.cause}; {self.fix}" if self.fix else self.cause

    @property
    def cause(self) -> str:
        """The text of the error without `fix`."""
        return f"{self.what} {self.allowed}".strip()


class RequestError(StudioError):
    """The request is wrong. Nothing was queued, written or changed."""


class ImageError(RequestError):
    """An input image cannot be used."""


class ClipError(RequestError):
    """An input clip cannot be used."""


class SoundError(RequestError):
    """An input audio file cannot be used."""


class OutputError(RequestError):
    """The video, or a command's files, cannot be written to the given path."""


class VideoFileError(StudioError):
    """A video cannot be written or read."""


class NoRequestInVideo(VideoFileError):
    """The video file does not contain a request of this studio."""


class ModelError(StudioError):
    """A checkpoint is missing, incomplete or not supported."""


class KernelRefused(StudioError):
    """A kernel cannot be compiled on this machine, or fails when it runs. The model must be reloaded without the kernel."""


class DeviceError(StudioError):
    """The machine's accelerator cannot be used."""


class JobNotFound(StudioError):
    """No job has this id."""


class JobHasBegun(StudioError):
    """The job no longer waits, so it cannot be changed."""


class QueueFull(StudioError):
    """The number of waiting jobs has reached the limit of an owner, an address or the whole queue."""


class Busy(StudioError):
    """The studio is at its limit of simultaneous work. Trying again after `retry_seconds` may succeed."""

    def __init__(self, what: str, allowed: str = "", fix: str = "", retry_seconds: float = 30.0):
        super().__init__(what, allowed, fix)
        self.retry_seconds = retry_seconds


class DataFolderError(StudioError):
    """The data folder cannot be used."""


class Stopped(Exception):
    """The work was stopped, or another part of the work failed. Users see no message for this error."""


def is_memory_short(error: BaseException) -> bool:
    """Return whether this error of Python or of a device's runtime means that memory ran out."""
    text = str(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()


_NEEDED = re.compile(r"Used ([\d.]+)([GM]) of|temporaries \(([\d.]+)([GM])\) exceed")


def bytes_needed(error: BaseException) -> int | None:
    """Return the bytes that a program needs on a device, from the TPU compiler's out-of-memory error. None for other errors."""
    match = _NEEDED.search(str(error))
    if match is None:
        return None
    size, unit = (group for group in match.groups() if group is not None)
    return int(float(size) * (2**30 if unit == "G" else 2**20))


def shorten(value: object, most: int = 60) -> str:
    """Return the `repr` of an untrusted value, cut to `most` characters. Reads only the beginning of large values."""
    text = _SHORT.repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def one_line(text: str) -> str:
    """Return the text on a single line. Line breaks and runs of blanks become one blank, unpaired surrogates "?"."""
    return " ".join(str(text).split()).encode("utf-8", "replace").decode("utf-8")
