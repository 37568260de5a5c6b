"""How long a worker may report nothing before it counts as hung. Pure.

A worker has two kinds of signs: a heartbeat from a thread of its own, which ends only if the whole process stands still, and the
progress of its work. Each stage has its own limit for the second; a step's and a frame's follow from those before it.
"""

from dataclasses import dataclass
from typing import ClassVar

from backend.schemas.events import Block, Decoding, Encoding, Event, Step, Upscaling
from backend.schemas.worker import WorkerState

HEARTBEAT_SECONDS = 1.0  # between two signs of life
SILENCE_SECONDS = 20.0  # without a sign of life; a library may hold Python's lock for some seconds
STOP_SECONDS = 30.0  # without progress before the first step of a stopped video; a large text encoder's program runs some seconds


@dataclass(kw_only=True)
class Watchdog:
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
    stopped: float | None = None

    def count_heartbeat(self, now: float) -> None:
        """Counts a sign of life."""
        self.alive = now

    def count_state(self, state: WorkerState, now: float) -> None:
        """Counts a new state of the worker."""
        if state != self.state:
            self.event, self.longest = None, 0.0
        if state not in ("loading", "busy"):
            self.stopped = None
        self.alive, self.progress, self.state = now, now, state

    def count_event(self, event: Event, now: float) -> None:
        """Counts an event of the worker's job."""
        if isinstance(event, Step | Decoding | Upscaling | Block) and type(event) is type(self.event):
            self.longest = max(self.longest, now - self.progress)
        elif type(event) is not type(self.event):
            self.longest = 0.0
        self.alive, self.progress, self.event = now, now, event

    def count_stop_request(self, now: float) -> None:
        """Counts that the worker was asked to stop its video."""
        self.stopped = now if self.stopped is None else self.stopped

    def restart_timers(self, now: float) -> None:
        """Starts all times anew: this process stood still itself."""
        self.alive = self.progress = now
        self.stopped = None if self.stopped is None else now

    def find_hang(self, now: float) -> str:
        """Why the worker counts as hung, as the cause of its end; "" if it does not."""
        silence, pause = now - self.alive, now - self.progress
        if silence > SILENCE_SECONDS:
            return f"The worker gave no sign of life for {silence:.0f} s and was ended"
        if self.stopped is not None and self._must_stop_soon() and min(pause, now - self.stopped) > STOP_SECONDS:
            return f"The worker did not stop its video within {STOP_SECONDS:.0f} s and was ended"
        if pause > (allowed := self.seconds_allowed()):
            return f"The worker reported nothing for {pause:.0f} s, at most {allowed:.0f} s were expected, and was ended"
        return ""

    def _must_stop_soon(self) -> bool:
        """Whether the stopped video has nothing to keep yet. A program that is being compiled is of use to later videos, and
        after the first step the unfinished video is decoded."""
        return self.state == "busy" and (self.event is None or isinstance(self.event, Encoding))

    def seconds_allowed(self) -> float:
        """Seconds until the next report is due."""
        if self.state == "ready" or self.state == "failed":
            return float("inf")
        if self.state != "busy":
            return self.limits[self.state]
        if isinstance(self.event, Step | Decoding | Upscaling | Block):
            return max(self.least, self.factor * self.longest) if self.longest else self.limits["first"]
        return self.limits.get(self.event.kind if self.event else "encoding", self.limits["first"])
