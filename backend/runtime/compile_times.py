"""How long programs took to compile on this machine, in one file, and how long those that a video lacks will take."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.files import replacing
from backend.runtime.program import Program

logger = logging.getLogger(__name__)


def kind_of(program: Program) -> str:
    """What its seconds are filed under: the devices and what the program does, whatever its size."""
    devices = program.layout.mesh.devices.flatten()
    return f"{len(devices)} {devices[0].device_kind}: {program.key}"


class CompileTimes:
    """The most seconds that each kind of program took, in a JSON file. One that came from a cache says nothing of the others."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, float]:
        """By kind; empty if the file is not there or broken."""
        try:
            stored = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        given = stored.items() if isinstance(stored, dict) else ()
        return {kind: float(seconds) for kind, seconds in given if isinstance(seconds, int | float)}

    def learn(self, seconds: Mapping[str, float]) -> None:
        """Adds these, in whole tenths; a file that cannot be written is left as it is."""
        known = self.read()
        news = {kind: round(value, 1) for kind, value in seconds.items() if value > known.get(kind, 0.05)}
        if not news:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as part:
                part.write_text(json.dumps(known | news, indent=1, sort_keys=True), "utf-8")
        except OSError:
            logger.exception("The seconds of compiling could not be written down")


class Forecast:
    """Seconds until all of these programs are made, so many at once. What those that are done took, beside what was known of
    them, corrects the rest: programs from a cache take a fraction."""

    def __init__(self, kinds: Sequence[str], known: Mapping[str, float], at_once: int = 1) -> None:
        self._kinds, self._known, self._at_once = list(kinds), known, at_once
        self._taken: list[float] = []

    def done(self, seconds: float) -> None:
        """The next program took so long."""
        self._taken.append(seconds)

    @property
    def seconds_left(self) -> float:
        """0 while nothing is known, neither from before nor from a program that is done."""
        left = self._kinds[len(self._taken) :]
        done = [(taken, self._known[kind]) for taken, kind in zip(self._taken, self._kinds, strict=False) if kind in self._known]
        pace = sum(taken for taken, _ in done) / max(sum(known for _, known in done), 1e-9) if done else 1.0
        expected = [self._known[kind] * pace for kind in left if kind in self._known]
        seen = expected or self._taken
        if not seen:
            return 0.0
        whole = sum(expected) + (len(left) - len(expected)) * sum(seen) / len(seen)
        return whole / max(1, min(self._at_once, len(left)))
