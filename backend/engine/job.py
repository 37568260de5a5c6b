"""A job as the queue, the library and the pages see it, and which jobs to list. Values only: `store` keeps them."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from backend.engine.summary import RequestSummary
from backend.schemas.request import GenerationRequest

LENGTHS = {"short": (0.0, 3.0), "medium": (3.0, 10.0), "long": (10.0, 1e9)}
"""Seconds of a video: more than the first, at most the second."""
SIZES = {"small": (0, 479), "480p": (479, 719), "720p": (719, 10**9)}
"""Pixels of its shorter side, likewise."""
JobState = Literal["queued", "running", "finished", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A job as lists show it, without its whole request.

    Times are seconds since the epoch, None until they are known. `is_told`: it is the operator's, who may be told of its end.
    `project` is one's id, "" for none. `made_seconds` is how long the finished video took, None if that is not known.
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
    is_told: bool = False
    project: str = ""
    tags: tuple[str, ...] = ()
    has_video: bool = False
    made_seconds: float | None = None

    @property
    def has_started(self) -> bool:
        """Whether a worker has worked on it; one that waits was interrupted."""
        return self.started is not None

    @property
    def has_ended(self) -> bool:
        """Whether its final event is stored."""
        return self.state not in ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Job(ListedJob):
    """One request, from the queue to its end."""

    request: GenerationRequest


@dataclass(frozen=True, kw_only=True)
class EndedJob:
    """What cleaning must know of an ended job. `is_cleaned`: its intermediate files have gone already."""

    id: str
    folder: Path
    ended: float
    deleted: float | None
    has_video: bool
    is_starred: bool
    is_cleaned: bool


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which videos to list. Empty fields choose everything; all `words` must occur in the prompts, those with "#" among the tags.
    `project` is one's id, "" for what is in none, None for all but what is archived; `length` is one of LENGTHS, `size` one of
    SIZES, `order` one of `selecting.ORDERS`. With `has_figures` only storyboards that have some."""

    owner: str | None = None
    words: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    is_starred: bool = False
    is_deleted: bool = False
    project: str | None = None
    length: str = ""
    size: str = ""
    has_figures: bool = False
    order: str = "newest"
    most: int = 60


def new_job_id() -> str:
    """An id that sorts by time and cannot be guessed."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(12)}"
