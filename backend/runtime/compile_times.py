"""Store how long programs took to compile on this machine, and estimate the compile time of further programs."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.files import replace_file
from backend.runtime.program import Program

logger = logging.getLogger(__name__)


def program_kind(program: Program) -> str:
    """Return a program's kind, under which its compile time is stored: the number and type of its devices, and `program.key`."""
    devices = program.layout.mesh.devices.flatten()
    return f"{len(devices)} {devices[0].device_kind}: {program.key}"


class CompileTimes:
    """A JSON file with the longest compile time of each kind of program (`program_kind`), in seconds. A program that is loaded
    quickly from a cache does not lower the stored time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, float]:
        """Return the stored seconds by kind of program. Return {} if the file is missing or broken."""
        try:
            stored = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        entries = stored.items() if isinstance(stored, dict) else ()
        return {kind: float(seconds) for kind, seconds in entries if isinstance(seconds, int | float)}

    def record(self, seconds: Mapping[str, float]) -> None:
        """Store the seconds of each kind of program, rounded to tenths, if they exceed the stored seconds. A file that cannot be
        written stays unchanged."""
        known = self.read()
        news = {kind: round(value, 1) for kind, value in seconds.items() if value > known.get(kind, 0.05)}
        if not news:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(self._path) as part:
                part.write_text(json.dumps(known | news, indent=1, sort_keys=True), "utf-8")
        except OSError:
            logger.exception("The compile times could not be written")


class Forecast:
    """Estimates the seconds until a list of programs is compiled, with `at_once` compilations in parallel.

    `kinds` are the kinds of the programs (`program_kind`), and `known` the stored seconds by kind. Programs from a cache need
    only a fraction of their stored seconds. Therefore the stored seconds of the remaining programs are multiplied by a ratio: the
    measured seconds of the finished programs, divided by their stored seconds.
    """

    def __init__(self, kinds: Sequence[str], known: Mapping[str, float], at_once: int = 1) -> None:
        self._kinds, self._known, self._at_once = list(kinds), known, at_once
        self._measured: list[float] = []

    def record_finished(self, seconds: float) -> None:
        """Record the seconds that the next program of `kinds` took to compile."""
        self._measured.append(seconds)

    @property
    def seconds_left(self) -> float:
        """The estimated seconds until all programs are compiled. 0 if neither stored nor measured seconds exist."""
        remaining = self._kinds[len(self._measured) :]
        done = [
            (measured, self._known[kind])
            for measured, kind in zip(self._measured, self._kinds, strict=False)
            if kind in self._known
        ]
        pace = sum(measured for measured, _ in done) / max(sum(known for _, known in done), 1e-9) if done else 1.0
        expected = [self._known[kind] * pace for kind in remaining if kind in self._known]
        samples = expected or self._measured
        if not samples:
            return 0.0
        whole = sum(expected) + (len(remaining) - len(expected)) * sum(samples) / len(samples)
        return whole / max(1, min(self._at_once, len(remaining)))
