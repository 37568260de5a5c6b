"""Find, star, delete and restore finished videos, and list jobs. Runs no jobs."""

import json
import time
from collections.abc import Callable, Sequence

from backend.engine.job import LENGTHS, SIZES, ListedJob, Selection
from backend.engine.jobs import LISTED_COLUMNS, JobEvents, Jobs, read_listed_jobs
from backend.engine.stored_requests import make_absolute
from backend.engine.tables import Tables
from backend.errors import StudioError
from backend.schemas.events import Failed

ORDERS = {
    "newest": "number DESC",
    "oldest": "number ASC",
    "longest": "seconds DESC, number DESC",
    "largest": "json_extract(summary, '$.width') * json_extract(summary, '$.height') DESC, number DESC",
}
_NOT_ARCHIVED = "(project = '' OR project NOT IN (SELECT id FROM projects WHERE archived IS NOT NULL))"
_SIDE = "MIN(json_extract(summary, '$.width'), json_extract(summary, '$.height'))"
_SHOTS = "CASE WHEN json_extract(summary, '$.has_shots') THEN json_extract(request, '$.shots') ELSE '' END"
_PROMPTS = f"lower(json_extract(summary, '$.prompt') || ' ' || {_SHOTS})"
_MOST_STORYBOARDS = 40  # how many of the newest storyboards are searched for characters


class Library:
    """The jobs of a data folder as a collection of videos. Each method is one transaction.

    `on_delete(owner)` is called after a job of this owner was moved to the bin.
    """

    def __init__(self, tables: Tables, jobs: Jobs, events: JobEvents):
        self._tables, self._jobs, self._events = tables, jobs, events
        self.on_delete: Callable[[str], None] = lambda owner: None

    def videos(self, selection: Selection) -> list[ListedJob]:
        """Return the selected jobs with a video, in the order of the selection."""
        where, values = _where_clause(selection)
        sql = f"SELECT {LISTED_COLUMNS} FROM jobs WHERE {where} ORDER BY {ORDERS.get(selection.order, ORDERS['newest'])} LIMIT ?"
        return read_listed_jobs(self._tables.listed_rows(sql, (*values, selection.most)))

    def count(self, selection: Selection) -> int:
        """Return the number of selected jobs with a video, without the limit `most`."""
        where, values = _where_clause(selection)
        return self._tables.listed_rows(f"SELECT COUNT(*) FROM jobs WHERE {where}", values)[0][0]

    def page(self, owner: str | None, *, after: str | None, most: int, oldest_first: bool) -> list[ListedJob]:
        """Return up to `most` of the owner's jobs outside the bin, newest first unless `oldest_first`. Owner None: all owners.

        If `after` is a job's id, the list starts after this job, and is empty if the job does not exist.
        """
        order, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
        sql = (
            f"SELECT {LISTED_COLUMNS} FROM jobs WHERE deleted IS NULL AND (:owner IS NULL OR owner = :owner)"
            f" AND (:after IS NULL OR number {beyond} (SELECT number FROM jobs WHERE id = :after))"
            f" ORDER BY number {order} LIMIT :most"
        )
        return read_listed_jobs(self._tables.listed_rows(sql, {"owner": owner, "after": after, "most": most}))

    def unended(self, owner: str | None = None) -> list[ListedJob]:
        """Return the owner's waiting and running jobs, oldest first. The owner None means all owners."""
        where = "state IN ('queued', 'running') AND (? IS NULL OR owner = ?)"
        sql = f"SELECT {LISTED_COLUMNS} FROM jobs WHERE {where} ORDER BY number"
        return read_listed_jobs(self._tables.listed_rows(sql, (owner, owner)))

    def ended(self, owner: str | None = None, most: int = 6) -> list[ListedJob]:
        """Return the `most` jobs that ended last and are not deleted. The job that ended last comes first."""
        sql = (
            f"SELECT {LISTED_COLUMNS} FROM jobs WHERE ended IS NOT NULL AND deleted IS NULL AND (? IS NULL OR owner = ?)"
            " ORDER BY ended DESC LIMIT ?"
        )
        return read_listed_jobs(self._tables.listed_rows(sql, (owner, owner, most)))

    def prompts(self, owner: str, most: int) -> list[str]:
        where = "owner = ? AND summary IS NOT NULL"
        sql = f"SELECT json_extract(summary, '$.prompt') FROM jobs WHERE {where} ORDER BY number DESC LIMIT ?"
        prompts = (row[0] for row in self._tables.listed_rows(sql, (owner, 4 * most)))
        return list(dict.fromkeys(filter(None, prompts)))[:most]

    def characters(self, owner: str, project: str, most: int) -> dict[str, str]:
        """Return the newest image path of each character by name, last used first.

        Searches the storyboards of the owner's `project`, or with "" the storyboards without a project.
        """
        stories = Selection(owner=owner, project=project, has_characters=True, most=_MOST_STORYBOARDS)
        where, values = _where_clause(stories)
        columns = "id, folder, json_extract(request, '$.figures') AS figures, json_extract(request, '$.figure_images') AS images"
        sql = f"SELECT {columns} FROM jobs WHERE {where} ORDER BY {ORDERS['newest']} LIMIT ?"
        named_images: dict[str, tuple[str, str]] = {}
        for row in self._tables.listed_rows(sql, (*values, stories.most)):
            given = {"figure_images": json.loads(row["images"] or "[]")}
            images = make_absolute(given, row["folder"], row["id"])["figure_images"]
            for figure in json.loads(row["figures"] or "[]"):
                if figure.get("image") is not None:
                    named_images.setdefault(figure["name"].lower(), (figure["name"], images[figure["image"]]))
        return dict(list(named_images.values())[:most])

    def counts(self) -> dict[str, int]:
        return {row["state"]: row["n"] for row in self._tables.rows("SELECT state, COUNT(*) AS n FROM jobs GROUP BY state")}

    def failures(self, most: int) -> list[tuple[ListedJob, Failed]]:
        sql = f"SELECT {LISTED_COLUMNS} FROM jobs WHERE state = 'failed' ORDER BY ended DESC LIMIT ?"
        ends = [(job, self._events.last(job.id)) for job in read_listed_jobs(self._tables.listed_rows(sql, (most,)))]
        return [(job, event) for job, event in ends if isinstance(event, Failed)]

    def with_sound(self, job_ids: Sequence[str]) -> frozenset[str]:
        sql = "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND has_sound"
        rows = self._tables.listed_rows(sql, (json.dumps(list(job_ids)),))
        return frozenset(row["id"] for row in rows)

    def star(self, job_id: str, is_starred: bool) -> None:
        self._tables.execute("UPDATE jobs SET starred = ? WHERE id = ?", (int(is_starred), job_id))

    def delete(self, job_id: str) -> None:
        """Move an ended job to the bin. Delete no files. Raises: JobNotFound, StudioError if the job has not ended."""
        job = self._jobs.find(job_id)
        sql = "UPDATE jobs SET deleted = ? WHERE id = ? AND state NOT IN ('queued', 'running')"
        if not self._tables.execute(sql, (time.time(), job_id)):
            raise StudioError("this video", "can be deleted only after it has ended", "stop it first")
        self.on_delete(job.owner)

    def restore(self, job_id: str) -> None:
        self._tables.execute("UPDATE jobs SET deleted = NULL WHERE id = ?", (job_id,))


def _where_clause(selection: Selection) -> tuple[str, tuple]:
    """Return the selection as an SQL condition with its values."""
    parts: list[tuple[str, tuple]] = [("has_video = 1", ()), (f"deleted IS {'NOT ' if selection.is_deleted else ''}NULL", ())]
    if selection.owner is not None:
        parts.append(("owner = ?", (selection.owner,)))
    if selection.project is not None:
        parts.append(("project = ?", (selection.project,)))
    elif not selection.is_deleted:
        parts.append((_NOT_ARCHIVED, ()))
    if selection.is_starred:
        parts.append(("starred = 1", ()))
    if selection.has_characters:
        parts.append(("json_extract(summary, '$.has_figures')", ()))
    if selection.presets:
        marks = ", ".join("?" * len(selection.presets))
        parts.append((f"json_extract(summary, '$.preset') IN ({marks})", selection.presets))
    if selection.length in LENGTHS:
        parts.append(("seconds > ? AND seconds <= ?", LENGTHS[selection.length]))
    if selection.size in SIZES:
        parts.append((f"{_SIDE} > ? AND {_SIDE} <= ?", SIZES[selection.size]))
    for word in selection.words:
        if word.startswith("#") and len(word) > 1:
            parts.append(("EXISTS (SELECT 1 FROM json_each(tags) WHERE lower(value) = lower(?))", (word[1:],)))
        else:
            parts.append((f"instr({_PROMPTS}, lower(?)) > 0", (word,)))
    return " AND ".join(part for part, _ in parts), tuple(value for _, given in parts for value in given)
