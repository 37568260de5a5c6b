"""Shows a job's progress: on one line of a terminal, or line by line elsewhere."""

from typing import TextIO

from backend.schemas.events import (
    Compiling,
    Decoding,
    Encoding,
    Event,
    Interrupted,
    Loading,
    Queued,
    ShotStarted,
    Step,
    Upscaling,
)


class Progress:
    """Shows on one stream how far a job is: one line that changes on a terminal, a line for each change elsewhere."""

    def __init__(self, stream: TextIO):
        self._stream, self._is_terminal, self._last = stream, stream.isatty(), ""

    def show(self, event: Event) -> None:
        """Shows this event, if it changes the text."""
        text = describe(event)
        if self._is_terminal and isinstance(event, Loading) and event.bytes_per_second:  # elsewhere a line every second
            left = (event.bytes_total - event.bytes_done) / event.bytes_per_second
            text += f" at {event.bytes_per_second / 1e6:.1f} MB/s, {left:.0f} s left"
        if text and text != self._last:
            self.write_text(text)

    def write_text(self, text: str) -> None:
        """Shows this text."""
        self._last = text
        self._stream.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Moves the terminal's cursor to a new line."""
        if self._is_terminal:
            self._stream.write("\n")


def describe(event: Event) -> str:
    """The event in a few words; empty for one that needs none."""
    match event:
        case Queued(position):
            return f"Waiting, {position} before it" if position else "Starting"
        case Loading(done, total, what):
            return f"Loading {what}" + (f" ({100 * done // total} %)" if total else "")
        case Compiling(what, is_loaded, index, total, left):
            return (f"Loaded {what} precompiled" if is_loaded else f"Compiling {what}") + _format_share(index, total, left)
        case Encoding():
            return "Reading the prompt"
        case Interrupted(cause=cause, place=place):
            return f"{cause} at {place}; going on from there"
        case Step(index, total, seconds, left):
            return f"Step {index} of {total} ({seconds:.2f} s a step, {left:.0f} s left)"
        case ShotStarted(index, total):
            return f"Shot {index} of {total}"
        case Decoding(frame, total):
            return f"Decoding frame {frame} of {total}"
        case Upscaling(frame, total, left):
            return f"Upscaling frame {frame} of {total}" + (f" ({left:.0f} s left)" if left else "")
    return ""


def _format_share(index: int, total: int, seconds_left: float) -> str:
    """How many programs there are, and about how long they will take."""
    if not total:
        return ""
    return f" ({index} of {total}{f', about {seconds_left:.0f} s left' if seconds_left >= 1 else ''})"
