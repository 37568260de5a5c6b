"""Values that describe jobs and selections of jobs. `backend.engine.store` stores the jobs."""

import hashlib
import json
import secrets
import time
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from backend.errors import RequestError
from backend.schemas.prompts import MAX_CHARACTERS
from backend.schemas.request import GenerationRequest

LENGTHS = {"short": (0.0, 3.0), "medium": (3.0, 10.0), "long": (10.0, 1e9)}
"""Ranges of a video's seconds: more than the first number, at most the second."""
SIZES = {"small": (0, 479), "480p": (479, 719), "720p": (719, 10**9)}
"""Ranges of the pixels of a video's shorter side: more than the first number, at most the second."""
JobState = Literal["queued", "running", "finished", "failed", "cancelled"]


_COPIED = ("seed", "width", "height", "num_frames", "fps", "num_steps", "is_open", "is_from_pictures")


@dataclass(frozen=True, kw_only=True)
class RequestSummary:
    """The values of a request that lists show. `final_width` and `final_height` are pixels of the video file."""

    preset: str
    prompt: str
    seed: int
    width: int
    height: int
    final_width: int
    final_height: int
    num_frames: int
    total_frames: int
    fps: int
    num_steps: int
    is_open: bool
    is_from_pictures: bool
    is_upscaling: bool
    has_shots: bool
    has_figures: bool
    digest: str

    @classmethod
    def from_request(cls, request: GenerationRequest) -> Self:
        text = json.dumps(request.to_json(), sort_keys=True)
        final_width, final_height = request.final_size
        try:
            total_frames = request.total_frames
        except RequestError:  # the preset no longer exists, so the frames of the shots are not known
            total_frames = request.num_frames
        return cls(
            **{name: getattr(request, name) for name in _COPIED},
            preset=request.preset[:MAX_CHARACTERS],
            prompt=request.prompt[:MAX_CHARACTERS],
            final_width=final_width,
            final_height=final_height,
            total_frames=total_frames,
            is_upscaling=bool(request.finished_video),
            has_shots=bool(request.shots),
            has_figures=bool(request.figures),
            digest=hashlib.sha256(text.encode()).hexdigest()[:32],
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read the JSON that `to_json` wrote. Ignore fields of newer versions."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """A job as lists show it, without its whole request. Times are seconds since the epoch, None until they are known.

    `project` is the project's id, "" without a project. `made_seconds` is the time to generate the video.
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
        return self.state not in ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Job(ListedJob):
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
    project. None selects all videos, except that videos of archived projects are selected only in the bin.
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
