"""Store projects and the tags of videos. Each video belongs to at most one project of its owner."""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from backend.engine.tables import TableGroup
from backend.engine.user_presets import validate_name
from backend.errors import RequestError

MOST_PROJECTS = 200  # the most projects of an owner
MOST_TAGS, LONGEST_TAG = 12, 40  # the most tags of a video, and the most characters of a tag
_LISTED = """
SELECT projects.*, (SELECT COUNT(*) FROM jobs WHERE project = projects.id AND has_video = 1 AND deleted IS NULL) AS videos
FROM projects WHERE (? IS NULL OR owner = ?) AND (? IS NULL OR id = ?)
ORDER BY owner IS NOT ?, archived IS NOT NULL, name COLLATE NOCASE LIMIT ?
"""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project and its number of videos, without videos in the bin."""

    id: str
    owner: str
    name: str
    is_archived: bool
    videos: int


class Projects(TableGroup):
    """The projects of all owners. For the owner None, the operator, methods find all projects. Each method is one transaction."""

    def list_for_owner(self, owner: str | None, first: str = "", *, project_id: str | None = None) -> list[Project]:
        """Return the owner's projects, or the project with this id, by name, archived projects last.

        For the owner None, return at most `MOST_PROJECTS` projects of all owners, first the projects of the owner `first`.
        """
        return [
            Project(
                id=row["id"], owner=row["owner"], name=row["name"], is_archived=row["archived"] is not None, videos=row["videos"]
            )
            for row in self._tables.rows(_LISTED, (owner, owner, project_id, project_id, first, MOST_PROJECTS))
        ]

    def find(self, project_id: str, owner: str | None) -> Project:
        """Return the owner's project with this id. Raises: RequestError."""
        projects = self.list_for_owner(owner, project_id=project_id)
        if not projects:
            raise RequestError(f"project={project_id[:40]!r}", "must be one of your projects", "choose a project from the list")
        return projects[0]

    def create(self, owner: str, name: str) -> Project:
        """Create a project. Raises: RequestError if the name is used or the owner has too many projects."""
        name = self._validate_free_name(owner, name)
        project_id = secrets.token_hex(8)
        with self._tables.transaction() as database:
            count = database.execute("SELECT COUNT(*) FROM projects WHERE owner = ?", (owner,)).fetchone()[0]
            if count >= MOST_PROJECTS:
                raise RequestError(f"you have {count} projects and", f"may have {MOST_PROJECTS}", "delete some first")
            row = (project_id, owner, name, time.time())
            database.execute("INSERT INTO projects (id, owner, name, created) VALUES (?, ?, ?, ?)", row)
        return self.find(project_id, owner)

    def rename(self, project_id: str, owner: str | None, name: str) -> None:
        """Rename a project. Raises: RequestError."""
        project = self.find(project_id, owner)
        if validate_name(name) != project.name:
            name = self._validate_free_name(project.owner, name, own_id=project.id)
            self._tables.execute("UPDATE projects SET name = ? WHERE id = ?", (name, project.id))

    def archive(self, project_id: str, owner: str | None, is_archived: bool) -> None:
        """Hide a project with its videos, or show it again. Raises: RequestError."""
        project = self.find(project_id, owner)
        archived = time.time() if is_archived else None
        self._tables.execute("UPDATE projects SET archived = ? WHERE id = ?", (archived, project.id))
        if is_archived:
            self._tables.execute("DELETE FROM current_projects WHERE project = ?", (project.id,))

    def delete(self, project_id: str, owner: str | None) -> None:
        """Delete a project. Its videos remain without a project. Raises: RequestError."""
        project = self.find(project_id, owner)
        with self._tables.transaction() as database:
            database.execute("UPDATE jobs SET project = '' WHERE project = ?", (project.id,))
            database.execute("DELETE FROM current_projects WHERE project = ?", (project.id,))
            database.execute("DELETE FROM projects WHERE id = ?", (project.id,))

    def set_current(self, owner: str, project_id: str) -> None:
        """Set the owner's current project, "" for none. Raises: RequestError."""
        if project_id and self.find(project_id, owner).is_archived:
            raise RequestError("an archived project", "cannot get new videos", "restore it first")
        self._tables.execute("INSERT OR REPLACE INTO current_projects VALUES (?, ?)", (owner, project_id))

    def current(self, owner: str) -> str:
        """Return the id of the owner's current project, "" for none."""
        rows = self._tables.rows("SELECT project FROM current_projects WHERE owner = ?", (owner,))
        return rows[0]["project"] if rows else ""

    def assign_video(self, job_id: str, owner: str, project_id: str) -> None:
        """Move a video to a project of its owner, "" for no project. Raises: RequestError."""
        if project_id:
            self.find(project_id, owner)
        self._tables.execute("UPDATE jobs SET project = ? WHERE id = ? AND owner = ?", (project_id, job_id, owner))

    def set_tags(self, job_id: str, text: str) -> tuple[str, ...]:
        """Replace the tags of a video. Commas or blanks separate the tags in `text`. Raises: RequestError."""
        tags = validate_tags(text.replace(",", " ").replace("，", " ").split())
        self._tables.execute("UPDATE jobs SET tags = ? WHERE id = ?", (json.dumps(tags, ensure_ascii=False), job_id))
        return tags

    def _validate_free_name(self, owner: str, name: str, own_id: str = "") -> str:
        """Return the normalized name. Raises: RequestError if it is invalid or another project of the owner has it."""
        name = validate_name(name)
        if any(project.name.casefold() == name.casefold() and project.id != own_id for project in self.list_for_owner(owner)):
            raise RequestError(f"the name {name!r}", "is used by another project", "choose another")
        return name


def validate_tags(words: Sequence[str]) -> tuple[str, ...]:
    """Return the tags without "#" and without duplicates. Raises: RequestError."""
    tags = tuple(dict.fromkeys(tag for word in words if (tag := str(word).lstrip("#＃").strip())))
    if len(tags) > MOST_TAGS:
        raise RequestError(f"{len(tags)} tags were given, and", f"a video may have {MOST_TAGS}", "leave some out")
    for tag in tags:
        if len(tag) > LONGEST_TAG or not tag.isprintable():
            raise RequestError(f"the tag {tag[:50]!r}", f"must have at most {LONGEST_TAG} characters", "shorten it")
    return tags
