"""Jobs and their events in SQLite."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.request import GenerationRequest

JobState = Literal["queued", "running", "finished", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request on its way. Times are seconds since the epoch, None while they have not come."""

    id: str
    owner: str
    request: GenerationRequest
    state: JobState
    created: float
    started: float | None
    ended: float | None
    folder: Path
