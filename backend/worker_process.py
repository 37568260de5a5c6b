"""Starts, feeds, cancels and restarts the worker process."""

from dataclasses import dataclass
from typing import Literal

WorkerState = Literal["starting", "loading", "warming", "ready", "busy", "failed"]


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What the worker does right now, with a sentence for people."""

    state: WorkerState
    detail: str
