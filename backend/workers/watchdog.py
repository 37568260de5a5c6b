"""Detect a hung worker from the time since its last reports: heartbeats from a separate thread, which stop only if the whole
process hangs, and progress of its work. The caller gives the current time and ends the worker."""

from dataclasses import dataclass
from typing import ClassVar

from backend.schemas.events import Block, Decoding, Encoding, Event, Step, Upscaling
from backend.schemas.worker import WorkerState

HEARTBEAT_SECONDS = 1.0  # interval between two heartbeats
SILENCE_SECONDS = 20.0  # longest time without a heartbeat; a library may hold Python's global lock for some seconds
# The longest time without progress after a visitor stopped a video before its first step. A large text encoder may run for
# some seconds.
STOP_SECONDS = 30.0


@dataclass(kw_only=True)
class Watchdog:
    """The times of one worker's reports and the limits for them. Times are monotonic seconds."""

    # The longest time without progress, in seconds, by stage.
    limits: ClassVar[dict[str, float]] = {
        "starting": 600.0,
        "loading": 600.0,  # each report of more bytes restarts this time
        "warming": 3600.0,  # the limit for one program
        "compiling": 3600.0,
        "encoding": 600.0,
        "first": 1800.0,  # the limit for the first step or frame
    }
    # The limit for a later step or frame is the time of the job's longest step or frame so far, times this factor.
    factor: ClassVar[float] = 20.0
    least: ClassVar[float] = 30.0

    alive: float
    progress: float
    state: WorkerState = "starting"
    event: Event | None = None
    longest: float = 0.0
    stopped: float | None = None

    def count_heartbeat(self, now: float) -> None:
        self.alive = now

    def count_state(self, state: WorkerState, now: float) -> None:
        """Record the worker's state. If it changed, forget the job's last event and longest step or frame."""
        if state != self.state:
            self.event, self.longest = None, 0.0
        if state not in ("loading", "busy"):
            self.stopped = None
        self.alive, self.progress, self.state = now, now, state

    def count_event(self, event: Event, now: float) -> None:
        """Record an event of the worker's job, and update the longest time of its steps or frames."""
        if isinstance(event, Step | Decoding | Upscaling | Block) and type(event) is type(self.event):
            self.longest = max(self.longest, now - self.progress)
        elif type(event) is not type(self.event):
            self.longest = 0.0
        self.alive, self.progress, self.event = now, now, event

    def count_stop_request(self, now: float) -> None:
        self.stopped = now if self.stopped is None else self.stopped

    def restart_timers(self, now: float) -> None:
        """Restart all timers at `now`. Call this after the engine's own process was delayed and could not record reports."""
        self.alive = self.progress = now
        self.stopped = None if self.stopped is None else now

    def find_hang(self, now: float) -> str:
        """Return the reason why the worker counts as hung, or "" if it does not. The caller ends a hung worker."""
        silence, pause = now - self.alive, now - self.progress
        if silence > SILENCE_SECONDS:
            return f"The worker gave no sign of life for {silence:.0f} s and was ended"
        # A stopped video must end soon before its first step, except during a compilation, because later videos use the program.
        # After the first step, the worker needs time to decode the unfinished video.
        must_stop_soon = self.state == "busy" and (self.event is None or isinstance(self.event, Encoding))
        if self.stopped is not None and must_stop_soon and min(pause, now - self.stopped) > STOP_SECONDS:
            return f"The worker did not stop its video within {STOP_SECONDS:.0f} s and was ended"
        if self.state in ("ready", "failed"):
            return ""
        if self.state != "busy":
            allowed = self.limits[self.state]
        elif isinstance(self.event, Step | Decoding | Upscaling | Block):
            allowed = max(self.least, self.factor * self.longest) if self.longest else self.limits["first"]
        else:
            allowed = self.limits.get(self.event.kind if self.event else "encoding", self.limits["first"])
        if pause > allowed:
            return f"The worker reported nothing for {pause:.0f} s, at most {allowed:.0f} s were expected, and was ended"
        return ""
