"""Decide whether an interrupted job is requeued, held or failed. The functions depend only on their arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from backend.schemas import events
from backend.schemas.events import Event, Failed, Interrupted

# The job fails after this many interruptions at one step or stage. Only the kinds in `_COUNTED` count, and at `START` only the
# kind "worker".
MOST_STOPS = 3
# The job is held after this many interruptions in a row at `START`. Only the kinds in `_COUNTED` count.
MOST_KILLS = 10
MOST_LOSSES = 2  # lost machines after which the job is still requeued; the next loss fails the job
MOST_SERVER_DEATHS = 1  # server crashes after which the job is still requeued; the next crash holds the job
QUIET_SECONDS = 600.0  # time without faults after which held jobs resume
START = "the start"  # the place of an interruption before the job's first reported stage, also while its model loads
_COUNTED = ("worker", "signal", "server")
_TIMES = {2: "twice", 3: "three times"}


@dataclass(frozen=True, kw_only=True)
class Requeue:
    """The job is requeued. With `waits`, it is held until a visitor resumes it or no fault occurs for ten minutes."""

    waits: bool = False


def describe_progress(event: Event | None) -> str:
    """Return the progress of a job from its newest event: the step that was running, or the stage."""
    match event:
        case events.Interrupted(place=place):
            return place
        case events.Compiling(what=what):
            return f"compiling {what}"
        case events.Encoding():
            return "encoding"
        case events.Step(index=index, total=total):
            return f"step {index + 1} of {total}" if index < total else "decoding"
        case events.Decoding():
            return "decoding"
        case events.Upscaling(frame=frame):
            return f"upscaling frame {frame}"
    return START


def decide_recovery(interruptions: Sequence[Interrupted]) -> Requeue | Failed:
    """`interruptions` are oldest first; the last has just happened."""
    last = interruptions[-1]
    losses = sum(one.by == "loss" for one in interruptions)
    if losses > MOST_LOSSES:
        return Failed(f"The machine of its worker was lost {_TIMES.get(losses, f'{losses} times')}", "Generate it again")
    recent = interruptions
    if last.place == START:  # an interruption at another place shows that the job had progressed; older ones do not count
        recent = list(takewhile(lambda one: one.place == START, reversed(interruptions)))[::-1]
    same = [one for one in recent if one.place == last.place and one.by in _COUNTED]
    own = [one for one in same if one.by == "worker"] if last.place == START else same
    if len(own) >= MOST_STOPS:
        causes = "; ".join(dict.fromkeys(one.cause for one in same))
        times = _TIMES.get(len(same), f"{len(same)} times")
        return Failed(f"It stopped {times} at {last.place}: {causes}", last.fix or "Generate it again")
    deaths = sum(one.by == "server" for one in interruptions)
    is_suspect = last.by == "server" and deaths > MOST_SERVER_DEATHS
    return Requeue(waits=is_suspect or (last.place == START and len(same) >= MOST_KILLS))
