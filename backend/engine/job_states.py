"""Store the states and places of waiting and running jobs, and the engine that owns each job, in SQLite."""

import time

from backend.engine.tables import Tables


class JobStates:
    """The states of jobs that have not ended. Each method is one transaction."""

    def __init__(self, tables: Tables):
        self._tables = tables

    def mark_running(self, job_id: str) -> bool:
        """Mark a waiting job as running. Return False if it no longer waits."""
        sql = "UPDATE jobs SET state = 'running', started = COALESCE(started, ?), held = 0 WHERE id = ? AND state = 'queued'"
        return self._tables.execute(sql, (time.time(), job_id)) == 1

    def request_stop(self, job_id: str) -> None:
        """Store that a running job must end, in case its worker dies first."""
        self._tables.execute("UPDATE jobs SET stopped = 1 WHERE id = ? AND state = 'running'", (job_id,))

    def requeue(self, job_id: str, is_held: bool) -> None:
        """Queue a running job again. With `is_held`, the job waits until `clear_hold` is called."""
        sql = "UPDATE jobs SET state = 'queued', held = ? WHERE id = ? AND state = 'running'"
        self._tables.execute(sql, (int(is_held), job_id))

    def clear_hold(self, job_id: str) -> None:
        """Release a held job."""
        self._tables.execute("UPDATE jobs SET held = 0 WHERE id = ?", (job_id,))

    def set_place(self, job_id: str, place: float) -> None:
        """Change a job's place in the queue."""
        self._tables.execute("UPDATE jobs SET place = ? WHERE id = ?", (place, job_id))

    def engines_with_open_jobs(self) -> list[str]:
        """Return the engines that own waiting or running jobs."""
        sql = "SELECT DISTINCT engine FROM jobs WHERE state IN ('queued', 'running') ORDER BY engine"
        return [row["engine"] for row in self._tables.rows(sql)]

    def unfinished_jobs(self, engine: str) -> list[str]:
        """Return the ids of one engine's waiting and running jobs, in the order of their places in the queue."""
        sql = "SELECT id FROM jobs WHERE engine = ? AND state IN ('queued', 'running') ORDER BY COALESCE(place, created), number"
        return [row["id"] for row in self._tables.rows(sql, (engine,))]

    def owning_engine(self, job_id: str) -> str | None:
        """Return the engine that owns the job, None if the job does not exist."""
        return next((row["engine"] for row in self._tables.rows("SELECT engine FROM jobs WHERE id = ?", (job_id,))), None)

    def assign_engine(self, job_id: str, engine: str) -> None:
        """Make another engine the owner of a job."""
        self._tables.execute("UPDATE jobs SET engine = ? WHERE id = ?", (engine, job_id))
