"""What becomes of a job whose work was interrupted: it goes on, it waits for a person, or it fails. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from backend.schemas import events
from backend.schemas.events import Event, Failed, Interrupted

MOST_STOPS = 3  # at the same place: a job goes on there twice
MOST_KILLS = 10  # from outside, one after the other, before the job's own work has begun; after that it waits for a person
MOST_LOSSES = 2  # of the machine that its worker was on: so often another goes on with it
MOST_SERVER_DEATHS = 1  # after one more, a person decides, or ten quiet minutes
QUIET_SECONDS = 600.0  # without any fault, before a job goes on that may have brought the machine down
START = "the start"  # also while the model is loaded
_COUNTED = ("worker", "signal", "server")


@dataclass(frozen=True, kw_only=True)
class Requeue:
    """The job is queued again, before all others. If it `waits`, a person or quiet minutes let it go on."""

    waits: bool = False


def describe_progress(event: Event | None) -> str:
    """How far a job had come, by its newest event: the step that was being made, or the stage."""
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
    """What becomes of a job after these interruptions, oldest first; the last one has just happened."""
    last = interruptions[-1]
    losses = sum(one.by == "loss" for one in interruptions)
    if losses > MOST_LOSSES:
        return Failed(f"The machine that made it was lost {_times(losses)}", "Make it again")
    recent = _since_progress(interruptions) if last.place == START else interruptions
    same = [one for one in recent if one.place == last.place and one.by in _COUNTED]
    own = [one for one in same if one.by == "worker"] if last.place == START else same
    if len(own) >= MOST_STOPS:
        causes = "; ".join(dict.fromkeys(one.cause for one in same))
        return Failed(f"It stopped {_times(len(same))} at {last.place}: {causes}", last.fix or "Make it again")
    deaths = sum(one.by == "server" for one in interruptions)
    is_suspect = last.by == "server" and deaths > MOST_SERVER_DEATHS
    return Requeue(waits=is_suspect or (last.place == START and len(same) >= MOST_KILLS))


def _since_progress(interruptions: Sequence[Interrupted]) -> list[Interrupted]:
    """The newest ones, all at the start: before them the job had come further, so its start is not what fails."""
    return list(reversed([*takewhile(lambda one: one.place == START, reversed(interruptions))]))


def _times(count: int) -> str:
    return {2: "twice", 3: "three times"}.get(count, f"{count} times")
