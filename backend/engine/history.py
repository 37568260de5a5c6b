"""Record the machine's load of the last day: step times, queue length, memory and disk usage, without prompts and names."""

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backend.engine.tables import Tables
from backend.errors import DataFolderError
from backend.schemas.events import Event, Step
from backend.schemas.worker import Device

BETWEEN_SECONDS = 30.0
DAY_SECONDS = 86_400.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The load at `time`, seconds since the epoch. Numbers that the system does not report have the value None.

    `step_seconds` is the mean time of the steps since the previous sample. Bytes are sums over all devices.
    """

    time: float
    waiting: int
    running: int
    step_seconds: float | None = None
    device_bytes: int | None = None
    device_limit: int | None = None
    disk_bytes: int | None = None
    disk_limit: int | None = None


class History:
    """Takes and stores a sample every 30 seconds in a thread. Samples survive a restart. Measures the disk of `folder`."""

    def __init__(
        self, tables: Tables, folder: Path, counts: Callable[[], tuple[int, int]], devices: Callable[[], Sequence[Device]]
    ) -> None:
        self._tables, self._folder = tables, folder
        self._counts, self._devices = counts, devices
        self._steps: list[float] = []  # seconds of each step since the last sample
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def record_step(self, job_id: str, event: Event) -> None:
        if isinstance(event, Step) and len(self._steps) < 10_000:
            self._steps.append(event.seconds)

    def take_sample(self, now: float | None = None) -> Sample:
        """Take and store a sample, and delete samples that are older than a day. Raises: sqlite3.Error."""
        steps, self._steps = self._steps, []
        waiting, running = self._counts()
        devices = [one for one in self._devices() if one.bytes_in_use is not None and one.bytes_limit]
        disk = None
        with suppress(OSError):
            disk = shutil.disk_usage(self._folder)
        sample = Sample(
            time=time.time() if now is None else now,
            waiting=waiting,
            running=running,
            step_seconds=sum(steps) / len(steps) if steps else None,
            device_bytes=sum(one.bytes_in_use or 0 for one in devices) if devices else None,
            device_limit=sum(one.bytes_limit or 0 for one in devices) if devices else None,
            disk_bytes=disk.used if disk else None,
            disk_limit=disk.total if disk else None,
        )
        names, values = ", ".join(vars(sample)), tuple(vars(sample).values())
        with self._tables.transaction() as database:
            database.execute(f"INSERT OR REPLACE INTO samples ({names}) VALUES ({', '.join('?' * len(values))})", values)
            database.execute("DELETE FROM samples WHERE time < ?", (sample.time - DAY_SECONDS,))
        return sample

    def samples_since(self, seconds: float) -> list[Sample]:
        rows = self._tables.rows("SELECT * FROM samples WHERE time > ? ORDER BY time", (time.time() - seconds,))
        return [Sample(**dict(row)) for row in rows]

    def close(self) -> None:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._is_closed.is_set():
            try:
                self.take_sample()
            except (sqlite3.Error, DataFolderError):
                logger.exception("The sample of the machine's load could not be stored")
            self._is_closed.wait(BETWEEN_SECONDS)
