"""Store the sizes of jobs' folders in SQLite, and list the ended jobs for `backend.engine.cleaning`. Deletes no files."""

from pathlib import Path

from backend.engine.job import EndedJob
from backend.engine.sizes import folder_size
from backend.engine.tables import TableGroup

_CLEAN = """
DELETE FROM events WHERE job_id = :job AND (SELECT ended FROM jobs WHERE id = :job) IS NOT NULL AND sequence NOT IN (
    SELECT MIN(sequence) FROM events WHERE job_id = :job UNION SELECT MAX(sequence) FROM events WHERE job_id = :job
    UNION SELECT sequence FROM events WHERE job_id = :job AND json_extract(event, '$.kind') = 'interrupted'
    UNION SELECT COALESCE(MAX(sequence), 0) FROM events WHERE job_id = :job AND json_extract(event, '$.preview') IS NOT NULL
        AND (SELECT has_video FROM jobs WHERE id = :job) = 0)
"""


class JobFiles(TableGroup):
    """The folders of jobs and their sizes. Each method is one transaction."""

    def ended_jobs(self) -> list[EndedJob]:
        """Return all ended jobs, oldest first."""
        sql = "SELECT id, folder, ended, deleted, has_video, starred, cleaned FROM jobs WHERE ended IS NOT NULL ORDER BY number"
        return [
            EndedJob(
                id=row["id"],
                folder=Path(row["folder"]),
                ended=row["ended"],
                deleted=row["deleted"],
                has_video=bool(row["has_video"]),
                is_starred=bool(row["starred"]),
                is_cleaned=bool(row["cleaned"]),
            )
            for row in self._tables.rows(sql)
        ]

    def job_ids(self, *, is_deleted: bool = True) -> set[str]:
        """Return the ids of all jobs. If `is_deleted` is False, leave out jobs in the bin."""
        where = "" if is_deleted else " WHERE deleted IS NULL"
        return {row["id"] for row in self._tables.rows(f"SELECT id FROM jobs{where}")}

    def mark_cleaned(self, job_id: str) -> None:
        """Mark an ended job as cleaned and delete most of its events.

        Keeps the first event, the last event and the interruptions. If the job has no video, keeps the last event with a preview.
        """
        with self._tables.transaction() as database:
            database.execute(_CLEAN, {"job": job_id})
            database.execute("UPDATE jobs SET cleaned = 1 WHERE id = ?", (job_id,))

    def measure_folder(self, job_id: str) -> None:
        """Measure the job's folder and store its size in bytes."""
        for row in self._tables.rows("SELECT folder FROM jobs WHERE id = ?", (job_id,)):
            self._tables.execute("UPDATE jobs SET bytes = ? WHERE id = ?", (folder_size(Path(row["folder"])).total, job_id))

    def unmeasured_jobs(self) -> list[str]:
        """Return the ids of ended jobs whose folders were never measured, because an older version added them."""
        return [row["id"] for row in self._tables.rows("SELECT id FROM jobs WHERE bytes IS NULL AND ended IS NOT NULL")]

    def stored_bytes(self, owner: str | None, *, is_deleted: bool = False) -> int:
        """Return the last measured bytes of all jobs, or of one owner's jobs. With `is_deleted`, count only jobs in the bin."""
        where = " AND deleted IS NOT NULL" if is_deleted else ""
        sql = f"SELECT COALESCE(SUM(bytes), 0) FROM jobs WHERE (? IS NULL OR owner = ?){where}"
        return self._tables.rows(sql, (owner, owner))[0][0]

    def oldest_deleted(self, owner: str | None) -> str | None:
        """Return the id of the owner's job that has been in the bin for the longest time. The owner None means all owners.

        Return None if the bin contains no job of this owner.
        """
        where = "deleted IS NOT NULL AND (? IS NULL OR owner = ?)"
        rows = self._tables.rows(f"SELECT id FROM jobs WHERE {where} ORDER BY deleted LIMIT 1", (owner, owner))
        return rows[0]["id"] if rows else None
