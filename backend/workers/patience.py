"""How long a worker may report nothing before it counts as hung. Pure.

A worker has two kinds of signs: a heartbeat from a thread of its own, which ends only if the whole process stands still, and the
progress of its work. Each stage has its own limit for the second; a step's and a frame's follow from those before it.
"""

from dataclasses import dataclass
from typing import ClassVar

from backend.contract.events import Block, Decoding, Event, Step, Upscaling
from backend.contract.worker import WorkerState

HEARTBEAT_SECONDS = 1.0  # between two signs of life
SILENCE_SECONDS = 20.0  # without a sign of life; a library may hold Python's lock for some seconds


@dataclass(kw_only=True)
class Patience:
    """The limits of one worker, in seconds, as its reports come in. Times are monotonic seconds."""

    limits: ClassVar[dict[str, float]] = {
        "starting": 600.0,
        "loading": 600.0,  # since the last bytes
        "warming": 3600.0,  # one program
        "compiling": 3600.0,
        "encoding": 600.0,
        "first": 1800.0,  # a step of which none is known yet
    }
    factor: ClassVar[float] = 20.0  # times the longest step or frame of this job so far
    least: ClassVar[float] = 30.0

    alive: float
    progress: float
    state: WorkerState = "starting"
    event: Event | None = None
    longest: float = 0.0

    def hear(self, now: float) -> None:
        """Counts a sign of life."""
        self.alive = now

    def take_state(self, state: WorkerState, now: float) -> None:
        """Counts a new state of the worker."""
        if state != self.state:
            self.event, self.longest = None, 0.0
        self.alive, self.progress, self.state = now, now, state

    def take_event(self, event: Event, now: float) -> None:
        """Counts an event of the worker's job."""
        if isinstance(event, Step | Decoding | Upscaling | Block) and type(event) is type(self.event):
            self.longest = max(self.longest, now - self.progress)
        elif type(event) is not type(self.event):
            self.longest = 0.0
        self.alive, self.progress, self.event = now, now, event

    def excuse(self, now: float) -> None:
        """Starts all times anew: this process stood still itself."""
        self.alive = self.progress = now

    def complaint(self, now: float) -> str:
        """Why the worker counts as hung, as the cause of its end; "" if it does not."""
        silence, pause = now - self.alive, now - self.progress
        if silence > SILENCE_SECONDS:
            return f"The worker gave no sign of life for {silence:.0f} s and was ended"
        if pause > self.allowed():
            return f"The worker reported nothing for {pause:.0f} s, at most {self.allowed():.0f} s were expected, and was ended"
        return ""

    def allowed(self) -> float:
        """Seconds until the next report is due."""
        if self.state == "ready" or self.state == "failed":
            return float("inf")
        if self.state != "busy":
            return self.limits[self.state]
        if isinstance(self.event, Step | Decoding | Upscaling | Block):
            return max(self.least, self.factor * self.longest) if self.longest else self.limits["first"]
        return self.limits.get(self.event.kind if self.event else "encoding", self.limits["first"])
