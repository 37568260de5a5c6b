"""What the machine did in the last day: how long steps took, how many videos waited, what memory and disk were in use. One sample
every half minute, kept over a restart; counts only, no prompt and no name."""

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.engine.database import Database
from backend.errors import DataFolderError
from backend.schemas.events import Event, Step
from backend.schemas.worker import Device

BETWEEN_SECONDS = 30.0
DAY_SECONDS = 86_400.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    time REAL PRIMARY KEY, waiting INTEGER NOT NULL, running INTEGER NOT NULL, step_seconds REAL,
    device_bytes INTEGER, device_limit INTEGER, disk_bytes INTEGER, disk_limit INTEGER) WITHOUT ROWID;
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The state at `time`, seconds since the epoch: videos that wait and run, the mean seconds of the steps since the sample
    before (None without one), bytes in use and in all of the devices together and of the disk (None if they do not tell)."""

    time: float
    waiting: int
    running: int
    step_seconds: float | None = None
    device_bytes: int | None = None
    device_limit: int | None = None
    disk_bytes: int | None = None
    disk_limit: int | None = None


class _Samples(Database):
    """The table of samples."""

    def _prepare(self) -> None:
        self._database.executescript(_SCHEMA)

    def add(self, sample: Sample) -> None:
        """Keeps a sample, and forgets those of yesterday."""
        names, values = ", ".join(vars(sample)), tuple(vars(sample).values())
        with self._transaction() as database:
            database.execute(f"INSERT OR REPLACE INTO samples ({names}) VALUES ({', '.join('?' * len(values))})", values)
            database.execute("DELETE FROM samples WHERE time < ?", (sample.time - DAY_SECONDS,))

    def samples_since(self, moment: float) -> list[Sample]:
        """The samples after this moment, oldest first."""
        return [Sample(**dict(row)) for row in self._rows("SELECT * FROM samples WHERE time > ? ORDER BY time", (moment,))]


class History:
    """Takes the samples. `counts` gives how many videos wait and run, `devices` the devices as they are now."""

    def __init__(self, path: Path, counts: Callable[[], tuple[int, int]], devices: Callable[[], Sequence[Device]]) -> None:
        self._samples, self._folder = _Samples(path), path.parent
        self._counts, self._devices = counts, devices
        self._steps: list[float] = []  # seconds of those since the last sample
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)

    def start(self) -> None:
        """Begins to take samples."""
        self._thread.start()

    def record_step(self, job_id: str, event: Event) -> None:
        """Takes the seconds of a step into the next sample."""
        if isinstance(event, Step) and len(self._steps) < 10_000:
            self._steps.append(event.seconds)

    def take_sample(self, now: float | None = None) -> Sample:
        """Takes a sample, and keeps it. Raises: sqlite3.Error."""
        steps, self._steps = self._steps, []
        waiting, running = self._counts()
        devices = [one for one in self._devices() if one.bytes_in_use is not None and one.bytes_limit]
        sample = Sample(
            time=time.time() if now is None else now,
            waiting=waiting,
            running=running,
            step_seconds=sum(steps) / len(steps) if steps else None,
            device_bytes=sum(one.bytes_in_use or 0 for one in devices) if devices else None,
            device_limit=sum(one.bytes_limit or 0 for one in devices) if devices else None,
            **_disk(self._folder),
        )
        self._samples.add(sample)
        return sample

    def samples_since(self, seconds: float) -> list[Sample]:
        """The samples of the last so many seconds, oldest first."""
        return self._samples.samples_since(time.time() - seconds)

    def close(self) -> None:
        """Ends the taking."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._samples.close()

    def _work(self) -> None:
        while not self._is_closed.is_set():
            try:
                self.take_sample()
            except (sqlite3.Error, DataFolderError):
                logger.exception("The machine's state could not be kept")
            self._is_closed.wait(BETWEEN_SECONDS)


def _disk(folder: Path) -> dict[str, int]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return {}
    return {"disk_bytes": usage.used, "disk_limit": usage.total}
