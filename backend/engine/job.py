"""Values that describe jobs and selections of jobs. `backend.engine.store` stores the jobs."""

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from backend.engine.summary import RequestSummary
from backend.schemas.request import GenerationRequest

LENGTHS = {"short": (0.0, 3.0), "medium": (3.0, 10.0), "long": (10.0, 1e9)}
"""Ranges of a video's seconds: more than the first number, at most the second."""
SIZES = {"small": (0, 479), "480p": (479, 719), "720p": (719, 10**9)}
"""Ranges of the pixels of a video's shorter side: more than the first number, at most the second."""
JobState = Literal["queued", "running", "finished", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A job as lists show it, without its whole request.

    Times are seconds since the epoch, None until they are known. `is_operator_notified` is True if the operator is notified when
    the job ends. `project` is the project's id, "" without a project. `made_seconds` is the time to generate the video, None if
    not known.
    """

    id: str
    owner: str
    summary: RequestSummary
    state: JobState
    created: float
    started: float | None
    ended: float | None
    folder: Path
    place: float = 0.0
    is_starred: bool = False
    deleted: float | None = None
    is_held: bool = False
    is_stopped: bool = False
    is_operator_notified: bool = False
    project: str = ""
    tags: tuple[str, ...] = ()
    has_video: bool = False
    made_seconds: float | None = None

    @property
    def has_started(self) -> bool:
        """True if a worker has worked on the job. If such a job waits, it was interrupted."""
        return self.started is not None

    @property
    def has_ended(self) -> bool:
        """True if the job's final event is stored."""
        return self.state not in ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Job(ListedJob):
    """A job with its whole request."""

    request: GenerationRequest

    @classmethod
    def create(cls, request: GenerationRequest, owner: str, folder: Path, **fields: Any) -> Self:
        """Return a new queued job, which is not stored yet. Its id is the folder's name. `fields` sets the other fields."""
        own: dict[str, Any] = {"state": "queued", "created": time.time(), "started": None, "ended": None}
        summary = RequestSummary.from_request(request)
        return cls(id=folder.name, owner=owner, summary=summary, request=request, folder=folder, **own | fields)


@dataclass(frozen=True, kw_only=True)
class EndedJob:
    """The values of an ended job that cleaning needs. `is_cleaned` is True if its intermediate files were deleted."""

    id: str
    folder: Path
    ended: float
    deleted: float | None
    has_video: bool
    is_starred: bool
    is_cleaned: bool


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A selection of videos. Empty fields do not restrict the selection.

    All `words` must occur in the prompts; words with "#" are tags. `project` is a project's id, or "" for videos without a
    project. None selects all videos, except that videos of archived projects are selected only in the bin. `length` is a key of
    `LENGTHS`, `size` is a key of `SIZES`, and `order` is a key of `library.ORDERS`. `has_characters` selects storyboards with
    characters.
    """

    owner: str | None = None
    words: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    is_starred: bool = False
    is_deleted: bool = False
    project: str | None = None
    length: str = ""
    size: str = ""
    has_characters: bool = False
    order: str = "newest"
    most: int = 60


def new_job_id() -> str:
    """Return an id that sorts by time and cannot be guessed."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(12)}"
