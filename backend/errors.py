"""The error tree. Every error says what was given, what is allowed and what to do, on one line."""

import re
import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


class StudioError(Exception):
    """Any failure that the studio can explain.

    `what` was given or happened, `allowed` is the rule it met, `fix` is what to do. `str()` joins them on one line,
    such as "num_frames=80 must be 4n+1; nearest: 77 or 81".
    """

    def __init__(self, what: str, allowed: str = "", fix: str = ""):
        self.what, self.allowed, self.fix = (one_line(part) for part in (what, allowed, fix))
        super().__init__(self.what, self.allowed, self.fix)

    def __str__(self) -> str:
        rule = f"{self.what} {self.allowed}".strip()
        return f"{rule}; {self.fix}" if self.fix else rule

    @property
    def cause(self) -> str:
        """What went wrong, without what to do about it."""
        return f"{self.what} {self.allowed}".strip()


class RequestError(StudioError):
    """The request is wrong. Nothing was queued, written or changed."""


class ImageError(RequestError):
    """An input image cannot be used."""


class ClipError(RequestError):
    """A clip, a video that another is made from, cannot be used."""


class SoundError(RequestError):
    """A sound, which a video follows, cannot be used."""


class OutputError(RequestError):
    """The video, or a command's files, cannot be written to the place that was given."""


class VideoFileError(StudioError):
    """A video cannot be written or read."""


class NoRequestInVideo(VideoFileError):
    """The video carries no request of ours."""


class ModelError(StudioError):
    """A checkpoint is missing, incomplete or of a kind that cannot be run."""


class KernelRefused(StudioError):
    """A kernel of ours cannot be compiled here, or fails when it runs. The model must be loaded again: it is then laid out
    without that kernel."""


class DeviceError(StudioError):
    """The machine's accelerator cannot be used."""


class JobNotFound(StudioError):
    """No job has this id."""


class JobHasBegun(StudioError):
    """The job no longer waits, so it cannot be changed."""


class QueueFull(StudioError):
    """This owner already has the most waiting jobs that one owner may have."""


class Busy(StudioError):
    """The studio is doing as much as it can at once; trying again after `retry_seconds` may work."""

    def __init__(self, what: str, allowed: str = "", fix: str = "", retry_seconds: float = 30.0):
        super().__init__(what, allowed, fix)
        self.retry_seconds = retry_seconds


class DataFolderError(StudioError):
    """The data folder cannot be used."""


class Stopped(Exception):
    """The work was stopped, or another part of it has failed. Needs no explanation to the user."""


def is_memory_short(error: BaseException) -> bool:
    """Whether this error, of Python or of a device's runtime, says that memory ran out."""
    text = str(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()


_NEEDED = re.compile(r"Used ([\d.]+)([GM]) of|temporaries \(([\d.]+)([GM])\) exceed")


def bytes_needed(error: BaseException) -> int | None:
    """How many bytes a program needs on a device, as the TPU's compiler says it where there is no room; None for other errors."""
    found = _NEEDED.search(str(error))
    if found is None:
        return None
    size, unit = (group for group in found.groups() if group is not None)
    return int(float(size) * (2**30 if unit == "G" else 2**20))


def short(value: object, most: int = 60) -> str:
    """A value that came from outside as Python writes it, cut; however large it is, only its beginning is looked at."""
    text = _SHORT.repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def one_line(text: str) -> str:
    """The text on a single line; each line break or run of blanks becomes one blank, and half a character "?"."""
    return " ".join(str(text).split()).encode("utf-8", "replace").decode("utf-8")
