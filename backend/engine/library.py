"""Find, star, delete and restore finished videos. Runs no jobs."""

from collections.abc import Callable

from backend.engine.job import Selection
from backend.engine.store import Store
from backend.errors import StudioError

_STORIES = 40  # how many of the newest storyboards are searched for characters


class Library:
    """The jobs of a store as a collection of videos. Exposes the part of the store that pages and programs may use."""

    def __init__(self, store: Store, on_delete: Callable[[str], None] = lambda owner: None):
        """Create a library. `on_delete(owner)` is called after a job of this owner was moved to the bin."""
        self._store, self._on_delete = store, on_delete
        self.videos, self.count, self.result, self.with_sound = store.videos, store.count_videos, store.result, store.with_sound
        self.page, self.unended, self.ended, self.star = store.page, store.unended, store.ended, store.star
        self.counts, self.failures = store.counts, store.failures

    def prompts(self, owner: str, most: int) -> list[str]:
        """Return the owner's last prompts, newest first, without duplicates."""
        return list(dict.fromkeys(filter(None, self._store.prompts(owner, 4 * most))))[:most]

    def figures(self, owner: str, project: str, most: int) -> dict[str, str]:
        """Return the newest image path of each character by name, last used first.

        Searches the storyboards of one of the owner's projects, or with "" the storyboards without a project.
        """
        stories = Selection(owner=owner, project=project, has_figures=True, most=_STORIES)
        found: dict[str, tuple[str, str]] = {}
        for name, image in self._store.figures(stories):
            found.setdefault(name.lower(), (name, image))
        return dict(list(found.values())[:most])

    def delete(self, job_id: str) -> None:
        """Move an ended job to the bin. Raises: StudioError if the job has not ended."""
        job = self._store.job(job_id)
        if not job.has_ended:
            raise StudioError("this video", "can be deleted only after it has ended", "stop it first")
        self._store.set_deleted(job_id, True)
        self._on_delete(job.owner)

    def restore(self, job_id: str) -> None:
        """Restore a job from the bin."""
        self._store.set_deleted(job_id, False)
