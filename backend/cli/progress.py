"""Show a job's progress: one changing line on a terminal, otherwise a line for each change."""

from collections.abc import Generator
from typing import TextIO, TypeVar

from backend.schemas import events
from backend.schemas.events import Event

Result = TypeVar("Result")


class Progress:
    def __init__(self, stream: TextIO):
        self._stream, self._is_terminal, self._last = stream, stream.isatty(), ""

    def show(self, event: Event) -> None:
        """Show the text for the event, unless this text is already shown."""
        text = describe(event)
        # The speed is shown only on a terminal, because each change of the speed would add a line to other streams.
        if self._is_terminal and isinstance(event, events.Loading) and event.bytes_per_second:
            left = (event.bytes_total - event.bytes_done) / event.bytes_per_second
            text += f" at {event.bytes_per_second / 1e6:.1f} MB/s, {left:.0f} s left"
        if text and text != self._last:
            self.write_text(text)

    def run(self, work: Generator[Event, None, Result]) -> Result:
        """Run the generator `work`, show the events that it yields, and return its result."""
        while True:
            try:
                self.show(next(work))
            except StopIteration as end:
                return end.value

    def write_text(self, text: str) -> None:
        """Write the text as a new line or, on a terminal, in place of the last line."""
        self._last = text
        self._stream.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Move the terminal's cursor to a new line."""
        if self._is_terminal:
            self._stream.write("\n")


def describe(event: Event) -> str:
    """Describe the event in a few words, "" for an event that is not shown."""
    match event:
        case events.Queued(position):
            return f"Queued behind {position}" if position else "Starting"
        case events.Loading(done, total, what):
            return f"Loading {what}" + (f" ({100 * done // total} %)" if total else "")
        case events.Compiling(what, is_loaded, index, total, left):
            done = f"Loaded {what} precompiled" if is_loaded else f"Compiling {what}"
            if not total:
                return done
            return f"{done} ({index} of {total}{f', about {left:.0f} s left' if left >= 1 else ''})"
        case events.Encoding():
            return "Encoding the prompt"
        case events.Interrupted(cause=cause, place=place):
            return f"{cause} at {place}; continuing from there"
        case events.Step(index, total, seconds, left):
            return f"Step {index} of {total} ({seconds:.2f} s per step, {left:.0f} s left)"
        case events.ShotStarted(index, total):
            return f"Shot {index} of {total}"
        case events.Decoding(frame, total):
            return f"Decoding frame {frame} of {total}"
        case events.Upscaling(frame, total, left):
            return f"Upscaling frame {frame} of {total}" + (f" ({left:.0f} s left)" if left else "")
    return ""
