"""End live videos that no page shows, and live videos that used up their time while other videos wait."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Generator

from backend.engine.engine import Engine
from backend.errors import StudioError

UNSEEN_SECONDS = 15.0  # a live video without an open page ends after this time
TURN_SECONDS = 60.0  # while another video waits, a live video may continue for this time
_POLL_SECONDS = 1.0


class LiveWatcher:
    """Watches the live videos of one engine. Times are monotonic seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._watchers: Counter[str] = Counter()
        self._seen: dict[str, float] = {}
        self._ends: dict[str, float] = {}  # job id -> time at which the video must end, while other videos wait
        threading.Thread(target=self._end_unwatched, name="live", daemon=True).start()

    def mark_seen(self, job_id: str) -> None:
        """Record that a page has just requested this video."""
        with self._lock:
            self._seen[job_id] = time.monotonic()

    @contextlib.contextmanager
    def keep_watched(self, job_id: str) -> Generator[None]:
        """Count one more page that shows this video, until the `with` block ends."""
        with self._lock:
            self._watchers[job_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._watchers[job_id] -= 1
                self._seen[job_id] = time.monotonic()

    def seconds_left(self, job_id: str) -> float | None:
        """Return the seconds until the video must end, None while no other video waits."""
        end = self._ends.get(job_id)
        return None if end is None else max(0.0, end - time.monotonic())

    def _end_unwatched(self) -> None:
        while self._engine.event_log.wait_for_change(-1, 0.0) is not None:  # None: the engine is closed
            for job_id in self._jobs_to_end(time.monotonic()):
                with contextlib.suppress(StudioError):
                    self._engine.queue.cancel(job_id)
            time.sleep(_POLL_SECONDS)

    def _jobs_to_end(self, now: float) -> list[str]:
        """Return the live videos to end now. After a restart of the server, pages have UNSEEN_SECONDS to reconnect."""
        running = [job for job in self._engine.library.unended(None) if job.summary.is_open]
        others_wait = any(job.state == "queued" for job in self._engine.library.unended(None))
        with self._lock:
            known = {job.id for job in running}
            for kept in (self._seen, self._ends):
                for job_id in kept.keys() - known:
                    del kept[job_id]
            over = []
            for job in running:
                seen = self._seen.setdefault(job.id, now)
                if self._watchers[job.id] <= 0 and now - seen > UNSEEN_SECONDS:
                    over.append(job.id)
                elif job.state == "running" and others_wait:
                    if now > self._ends.setdefault(job.id, now + TURN_SECONDS):
                        over.append(job.id)
                else:
                    self._ends.pop(job.id, None)
            return over
