"""Finds, stars, deletes and restores the videos that were made. Runs nothing."""

from collections.abc import Callable

from backend.engine.job import Selection
from backend.engine.store import Store
from backend.errors import StudioError

_STORIES = 40  # the last ones are looked through for figures


class Library:
    """The jobs of a store as a collection of videos: what pages and programs may ask of the store, and nothing else of it."""

    def __init__(self, store: Store, on_delete: Callable[[str], None] = lambda owner: None):
        """`on_delete(owner)` is called after a job of this owner was put into the bin."""
        self._store, self._on_delete = store, on_delete
        self.videos, self.count, self.result, self.with_sound = store.videos, store.count_videos, store.result, store.with_sound
        self.page, self.unended, self.ended, self.star = store.page, store.unended, store.ended, store.star
        self.counts, self.failures = store.counts, store.failures

    def prompts(self, owner: str, most: int) -> list[str]:
        """The owner's last prompts, newest first, each once."""
        return list(dict.fromkeys(filter(None, self._store.prompts(owner, 4 * most))))[:most]

    def figures(self, owner: str, project: str, most: int) -> dict[str, str]:
        """The figures of the storyboards in a project of the owner's, "" for those in none: the path of the newest picture by
        name, those that were used last first."""
        stories = Selection(owner=owner, project=project, has_figures=True, most=_STORIES)
        found: dict[str, tuple[str, str]] = {}
        for name, image in self._store.figures(stories):
            found.setdefault(name.lower(), (name, image))
        return dict(list(found.values())[:most])

    def delete(self, job_id: str) -> None:
        """Puts an ended job into the bin. Raises: StudioError for one that has not ended."""
        job = self._store.job(job_id)
        if not job.has_ended:
            raise StudioError("this video is still being made and", "can be deleted once it has ended", "stop it first")
        self._store.set_deleted(job_id, True)
        self._on_delete(job.owner)

    def restore(self, job_id: str) -> None:
        """Takes a job out of the bin."""
        self._store.set_deleted(job_id, False)
