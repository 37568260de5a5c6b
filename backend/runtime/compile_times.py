"""Store how long programs took to compile on this machine, and estimate the compile time of further programs."""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.files import replace_file

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class CompileTimes:
    """A JSON file with the longest compile time of each kind of program (see `warm_up`), in seconds. A program that is loaded
    quickly from a cache does not lower the stored time."""

    path: Path

    def read(self) -> dict[str, float]:
        """Return the stored seconds by kind of program. Return {} if the file is missing or broken."""
        try:
            stored = json.loads(self.path.read_text("utf-8"))
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
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(self.path) as part:
                part.write_text(json.dumps(known | news, indent=1, sort_keys=True), "utf-8")
        except OSError:
            logger.exception("The compile times could not be written")


@dataclasses.dataclass
class Forecast:
    """Estimates the seconds until a list of programs is compiled, with `at_once` compilations in parallel.

    `kinds` are the kinds of the programs (see `warm_up`), and `known` the stored seconds by kind. `measured` are the seconds of
    the finished programs, which are the first of `kinds`. Programs from a cache need only a fraction of their stored
    seconds. Therefore the stored seconds of the remaining programs are multiplied by a ratio: the measured seconds of the
    finished programs, divided by their stored seconds.
    """

    kinds: Sequence[str]
    known: Mapping[str, float]
    at_once: int = 1
    measured: list[float] = dataclasses.field(default_factory=list)

    @property
    def seconds_left(self) -> float:
        """The estimated seconds until all programs are compiled. 0 if neither stored nor measured seconds exist."""
        remaining = self.kinds[len(self.measured) :]
        finished = zip(self.measured, self.kinds, strict=False)
        done = [(measured, self.known[kind]) for measured, kind in finished if kind in self.known]
        pace = sum(measured for measured, _ in done) / max(sum(known for _, known in done), 1e-9) if done else 1.0
        expected = [self.known[kind] * pace for kind in remaining if kind in self.known]
        samples = expected or self.measured
        if not samples:
            return 0.0
        whole = sum(expected) + (len(remaining) - len(expected)) * sum(samples) / len(samples)
        return whole / max(1, min(self.at_once, len(remaining)))
