"""Export a project as one file, and import such a file with its videos, settings, stars and tags."""

import errno
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.engine.disk import find_shortage
from backend.engine.folder import write_request_steps
from backend.engine.job import Job, Selection, new_job_id
from backend.engine.projects import Project, validate_tags
from backend.engine.store import Store
from backend.errors import RequestError, StudioError
from backend.media.project_archive import MOST_VIDEOS, ArchiveEntry, unpack_archive, write_archive
from backend.media.sandbox import EXPORT_SECONDS, SandboxCall, Steps
from backend.schemas.events import VIDEO_FILE, Finished, VideoResult
from backend.schemas.request import MOST_STORED_CHARACTERS, GenerationRequest, check_imported_size
from backend.schemas.settings import INPUTS, to_input_fields
from backend.schemas.shots import check_shots

_LONGEST_TABLE = 50  # the most entries that are imported from a video's `seconds`, and from its `versions`
_LONGEST_TEXT, _MOST_SECONDS = 100, 1e8  # limits of one entry: the characters of a text, and the value of a number


def export_project(store: Store, project: Project, path: Path) -> Steps[int]:
    """Write the project's videos to a file, except videos in the bin. The generator returns the number of written videos.

    Raises: RequestError; Busy; OSError, also if the disk has not enough space.
    """
    selection = Selection(owner=project.owner, project=project.id, order="oldest", most=MOST_VIDEOS + 1)
    jobs = [job for job in store.library.videos(selection) if (job.folder / VIDEO_FILE).is_file()]
    if not jobs:
        raise RequestError(f"the project {project.name!r}", "has no videos", "move some into it first")
    if len(jobs) > MOST_VIDEOS:
        raise RequestError(f"the project {project.name!r}", f"has more than {MOST_VIDEOS:,} videos", "divide it into two")
    entries = []
    for job, result in [(store.jobs.find(listed.id), store.events.result(listed.id)) for listed in jobs]:
        inputs = {role: [Path(path) for path in paths if Path(path).is_file()] for role, paths in job.request.inputs().items()}
        metadata: dict[str, Any] = {
            "request": job.request.for_sharing(),
            "created": job.created,
            "starred": job.is_starred,
            "tags": list(job.tags),
        }
        if result:
            metadata |= {"seconds": result.seconds, "versions": result.versions, "notes": list(result.notes)}
        entries.append(ArchiveEntry(video=job.folder / VIDEO_FILE, inputs=inputs, metadata=metadata))
    files = (file for entry in entries for file in (entry.video, *(one for many in entry.inputs.values() for one in many)))
    if find_shortage(path.parent, sum(file.stat().st_size for file in files)):
        raise OSError(errno.ENOSPC, "No space left on device")
    work = (project.name, entries, path)
    yield SandboxCall(work=write_archive, arguments=work, seconds=EXPORT_SECONDS, task="project")
    return len(jobs)


def import_project(store: Store, runs: Path, engine: str, owner: str, archive: Path, folder: Path) -> Steps[tuple[Project, int]]:
    """Import an untrusted project file as a new project of this owner, with the empty `folder` for the unpacked files.

    The generator returns the project and its number of videos. After an error nothing is imported. Raises: StudioError, OSError.
    """
    unpacked = yield SandboxCall(work=unpack_archive, arguments=(archive, folder), seconds=EXPORT_SECONDS, task="import")
    name = _to_one_line(unpacked["name"])[:50].strip() or "project"
    taken = {project.name.casefold() for project in store.projects.list_for_owner(owner)}
    names = [name, *(f"{name} {number}" for number in range(2, 1000))]
    project = store.projects.create(owner, next(one for one in names if one.casefold() not in taken))
    made: list[str] = []
    try:
        for one in unpacked["videos"]:
            job_id = new_job_id()
            place = runs / job_id
            place.mkdir(parents=True)
            made.append(job_id)
            request = yield from write_request_steps(_imported_request(one), place)
            shutil.copyfile(one["video"], place / VIDEO_FILE)
            created, now = one["metadata"].get("created"), time.time()
            created = float(created) if isinstance(created, int | float) and 0 < created <= now else now
            given = one["metadata"].get("tags")
            try:
                tags = validate_tags([str(tag) for tag in given]) if isinstance(given, list) else ()
            except StudioError:
                tags = ()
            job = Job.create(request, owner, place, created=created, project=project.id, tags=tags)
            store.jobs.add(job, engine)
            store.events.append(job_id, Finished(_imported_result(one, job)))
            if one["metadata"].get("starred") is True:
                store.library.star(job_id, True)
    except BaseException:
        for job_id in made:
            store.jobs.forget(job_id)
            shutil.rmtree(runs / job_id, ignore_errors=True)
        store.projects.delete(project.id, owner)
        raise
    return store.projects.find(project.id, owner), len(made)


def _imported_result(one: Mapping[str, Any], job: Job) -> VideoResult:
    """Return the imported video of this job. Size, length and audio come from the video file, other values from the archive."""
    metadata, fps = one["metadata"], max(1, round(one["fps"]))
    notes = metadata.get("notes")
    return VideoResult(
        path=str(job.folder / VIDEO_FILE),
        fps=fps,
        num_frames=max(1, round(one["seconds"] * fps)),
        width=one["width"],
        height=one["height"],
        seconds=_valid_entries(metadata.get("seconds"), (int, float)),
        request=job.request,
        versions=_valid_entries(metadata.get("versions"), (str,)),
        notes=tuple(_to_one_line(note)[:500] for note in notes[:20]) if isinstance(notes, list) else (),
        has_sound=one["has_sound"],
    )


def _imported_request(one: Mapping[str, Any]) -> GenerationRequest:
    """Return the video's request, with the unpacked inputs. Raises: RequestError."""
    stored = one["metadata"].get("request")
    if not isinstance(stored, dict):
        raise RequestError("the project file", "must contain the request of each video", "export the project again")
    if len(json.dumps(stored, ensure_ascii=False)) > MOST_STORED_CHARACTERS:
        rule = f"contains a request with more than {MOST_STORED_CHARACTERS:,} characters"
        raise RequestError("the project file", rule, "export the project again")
    own = {name: value for name, value in stored.items() if name not in {setting.name for setting in INPUTS}}
    request = GenerationRequest.from_stored(own | to_input_fields(one["inputs"]))
    check_imported_size(request)
    if request.shots:
        # Refuse an unknown preset (RequestError), because pages need the preset to show the length of each shot.
        check_shots(request, request.resolved_preset)
    return request


def _to_one_line(given: object) -> str:
    return " ".join("".join(character for character in str(given) if character.isprintable() or character.isspace()).split())


def _valid_entries(given: object, kinds: tuple[type, ...]) -> dict[str, Any]:
    """Return the entries of an untrusted dictionary whose values are of these types and not too large."""
    if not isinstance(given, dict):
        return {}
    entries = {}
    for key, value in given.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            continue
        if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
            entries[_to_one_line(key)[:40]] = _to_one_line(value)
        elif not isinstance(value, str) and 0 <= value < _MOST_SECONDS:
            entries[_to_one_line(key)[:40]] = value
    return dict(list(entries.items())[:_LONGEST_TABLE])
