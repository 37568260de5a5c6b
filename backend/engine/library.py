"""Finds, stars, deletes and restores the videos that were made. Runs nothing."""

from collections.abc import Sequence

from backend.contract.events import Failed, VideoResult
from backend.engine.job import Job, Selection
from backend.engine.store import Store
from backend.errors import StudioError


class Library:
    """The jobs of a store as a collection of videos."""

    def __init__(self, store: Store):
        self._store = store

    def videos(self, selection: Selection) -> list[Job]:
        """The videos that fit the selection, newest first."""
        return self._store.videos(selection)

    def count(self, selection: Selection) -> int:
        """How many fit it, without its limit."""
        return self._store.count_videos(selection)

    def result(self, job_id: str) -> VideoResult | None:
        """The job's video with its seconds and versions, if it left one."""
        return self._store.result(job_id)

    def with_sound(self, job_ids: Sequence[str]) -> frozenset[str]:
        """Those of these jobs whose video has sound."""
        return self._store.with_sound(job_ids)

    def page(self, owner: str | None, *, after: str | None = None, most: int, oldest_first: bool = False) -> list[Job]:
        """At most so many jobs that are not deleted, in the order in which they came or against it: the first ones, or those that
        follow the job `after`."""
        return self._store.page(owner, after=after, most=most, oldest_first=oldest_first)

    def unended(self, owner: str | None) -> list[Job]:
        """The jobs that wait or run, oldest first."""
        return self._store.unended(owner)

    def ended(self, owner: str | None, most: int) -> list[Job]:
        """The jobs that ended last, with or without a video."""
        return self._store.ended(owner, most)

    def failures(self, most: int) -> list[tuple[Job, Failed]]:
        """The jobs that failed last, with their reasons."""
        return self._store.failures(most)

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        return self._store.counts()

    def prompts(self, owner: str, most: int) -> list[str]:
        """The owner's last prompts, newest first, each once."""
        prompts = (job.request.prompt for job in self._store.jobs(owner, most=4 * most))
        return list(dict.fromkeys(filter(None, prompts)))[:most]

    def star(self, job_id: str, is_starred: bool) -> None:
        """Marks a video as one of the best, or takes the mark away."""
        self._store.star(job_id, is_starred)

    def delete(self, job_id: str) -> None:
        """Puts an ended job into the bin. Raises: StudioError for one that has not ended."""
        if not self._store.job(job_id).has_ended:
            raise StudioError("this video is still being made and", "can be deleted once it has ended", "stop it first")
        self._store.delete(job_id, True)

    def restore(self, job_id: str) -> None:
        """Takes a job out of the bin."""
        self._store.delete(job_id, False)
