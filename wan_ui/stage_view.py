"""What the stage shows, as a frozen value, and how each event changes it. Pure: no Gradio, no HTML, no files."""

from dataclasses import dataclass, replace
from typing import Literal

from backend import events
from backend.events import Event, VideoResult

Phase = Literal[
    "idle", "queued", "starting", "loading", "compiling", "encoding", "denoising", "decoding", "finished", "cancelled",
    "failed",
]  # fmt: skip
ACTIVE_PHASES = ("queued", "starting", "loading", "compiling", "encoding", "denoising", "decoding")
# Shares of the bar: on the demo model and on published Wan runs alike, denoising is by far the longest part.
ENCODED, DENOISED = 0.04, 0.88


@dataclass(frozen=True, kw_only=True)
class StageView:
    """One moment of one job.

    `fraction` (0 to 1) never goes back; `ahead` counts the waiting jobs before this one, besides the one that runs;
    `preview` is a file name in the job's folder; `what` says what is loaded, compiled or waited for, and `bytes_per_second`
    how fast it is downloaded.
    """

    phase: Phase = "idle"
    fraction: float = 0.0
    ahead: int = 0
    index: int = 0
    total: int = 0
    seconds_per_step: float | None = None
    seconds_left: float | None = None
    what: str = ""
    bytes_per_second: float = 0.0
    preview: str | None = None
    result: VideoResult | None = None
    cause: str = ""
    fix: str = ""

    @property
    def is_active(self) -> bool:
        return self.phase in ACTIVE_PHASES


def advance(view: StageView, event: Event) -> StageView:
    """The view after this event."""
    match event:
        case events.Queued(position=position):
            return replace(view, phase="queued", ahead=position)
        case events.Loading(bytes_done=done, bytes_total=total, what=what, bytes_per_second=speed):
            return replace(view, phase="loading", what=what, index=done, total=total, bytes_per_second=speed)
        case events.Compiling(what=what, is_loaded=is_loaded):
            return replace(view, phase="starting" if is_loaded else "compiling", what=what)
        case events.Encoding():
            return _reach(view, "encoding", ENCODED / 2)
        case events.Step():
            return _after_step(view, event)
        case events.Decoding(frame=frame, total=total):
            reached = DENOISED + (1 - DENOISED) * frame / max(total, 1)
            return replace(_reach(view, "decoding", reached), index=frame, total=total, seconds_left=None)
        case _:
            return _ended(view, event)


def _after_step(view: StageView, step: events.Step) -> StageView:
    reached = ENCODED + (DENOISED - ENCODED) * step.index / max(step.total, 1)
    return replace(
        _reach(view, "denoising", reached), index=step.index, total=step.total, seconds_per_step=step.seconds,
        seconds_left=step.seconds_left, preview=step.preview or view.preview,
    )  # fmt: skip


def _ended(view: StageView, event: Event) -> StageView:
    match event:
        case events.Finished(result=result):
            return replace(view, phase="finished", fraction=1.0, result=result)
        case events.Cancelled(result=result):
            return replace(view, phase="cancelled", result=result)
        case events.Failed(cause=cause, fix=fix):
            return replace(view, phase="failed", cause=cause, fix=fix)
    return view


def _reach(view: StageView, phase: Phase, fraction: float) -> StageView:
    return replace(view, phase=phase, fraction=max(view.fraction, fraction))


def spoken_seconds(seconds: float) -> str:
    """A duration as people write it: 0.31 s, 4.2 s, 48 s, 3 min 20 s, 1 h 5 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
