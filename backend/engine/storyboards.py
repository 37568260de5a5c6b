"""Add the shots of storyboards to the library, and reuse finished shots when a storyboard is regenerated."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

from backend.engine.folder import open_inputs, write_request
from backend.engine.job import Job
from backend.engine.store import Store
from backend.errors import JobNotFound, RequestError
from backend.files import link_or_copy
from backend.media.film import write_storyboard_film
from backend.media.sandbox import EXPORT_SECONDS, SandboxCall, Steps
from backend.schemas.events import VIDEO_FILE, Finished, ShotFinished, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import Shot
from backend.schemas.shots import FILES, FOLDER, LAST, LAST_FRAMES, LOOK, RESULT


def shot_id(story_id: str, number: int) -> str:
    """Return the id of a shot's job in the library. `number` counts from 1."""
    return f"{story_id}-shot-{number}"


def split_shot_id(job_id: str) -> tuple[str, int]:
    """Split an id from `shot_id` into the storyboard's job id and the shot's number. For other ids, return the id and 0."""
    match = re.fullmatch(r"(.+)-shot-(\d{1,6})", job_id)
    return (match[1], int(match[2])) if match else (job_id, 0)


def add_shot(store: Store, runs: Path, story: Job, event: ShotFinished, engine: str) -> None:
    """Add a shot to the library as a finished video, unless it is there or is the only shot.

    Raises: OSError, StudioError, sqlite3.Error.
    """
    if event.total == 1:
        return
    job_id = shot_id(story.id, event.index)
    try:
        store.jobs.find(job_id)
        return
    except JobNotFound:
        pass
    folder = runs / job_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    request = event.result.request
    request = write_request(request, open_inputs(request), folder)
    link_or_copy(Path(event.result.path), folder / VIDEO_FILE)
    seconds = {"total": round(sum(event.result.seconds.values()), 3)} | event.result.seconds
    made = Finished(replace(event.result, path=str(folder / VIDEO_FILE), request=request, seconds=seconds))
    add_finished_job(store, story.owner, made, engine, story.project)


def add_finished_job(store: Store, owner: str, event: Finished, engine: str, project: str = "") -> None:
    """Add a finished video to the library and to the given project. Raises: sqlite3.Error."""
    request, folder = event.result.request, Path(event.result.path).parent
    job = Job.create(request, owner, folder, project=project)
    store.jobs.add(job, engine)
    store.events.append(job.id, event)


def cut_storyboard(request: GenerationRequest, folder: Path) -> Steps[Finished]:
    """Join a storyboard's finished shots to a video in the job's folder. This needs no model. Raises: StudioError."""
    path = folder / VIDEO_FILE
    made = yield SandboxCall(work=write_storyboard_film, arguments=(request, path), seconds=EXPORT_SECONDS, task="film")
    return Finished(
        VideoResult(
            path=str(path),
            fps=request.fps,
            num_frames=made["num_frames"],
            width=request.width,
            height=request.height,
            seconds={"total": made["seconds"]},
            request=request,
            versions={},
            has_sound=made["has_sound"],
        )
    )


def regenerate_from(story: Job, number: int, request: GenerationRequest) -> GenerationRequest:
    """Return the request with the shots of `story` before `number` (from 1), and the shots and characters of `request` then.

    Raises: RequestError if the shot does not exist or the files of the earlier shots were deleted.
    """
    before = story.request
    if not before.shots or not 1 <= number <= len(before.shots):
        rule = f"must be from 1 to {len(before.shots)}" if before.shots else "needs a storyboard, and this video is not one"
        raise RequestError(f"from_shot={number}", rule, "choose another")
    if any(not (story.folder / FOLDER / str(kept) / RESULT).is_file() for kept in range(1, number)):
        rule = "needs the earlier shots, which were deleted"
        raise RequestError(f"from_shot={number}", rule, "regenerate the whole storyboard")
    files = {role: getattr(before, role) + getattr(request, role) for role in FILES.values()}
    shots: list[Shot] = []
    for index, shot in enumerate(before.shots[: number - 1]):
        if shot.video is None and shot.seed is None:  # an explicit seed does not depend on the storyboard's seed
            shot = shot.model_copy(update={"seed": (before.seed + index) % (1 << 32)})
        shots.append(shot)
    for shot in request.shots[number - 1 :]:  # the result lists the files of `before` first, then the files of `request`
        places = {kind: getattr(shot, kind) for kind in FILES if getattr(shot, kind) is not None}
        shifted = {kind: place + len(getattr(before, FILES[kind])) for kind, place in places.items()}
        shots.append(shot.model_copy(update=shifted))
    own = ("shots", "prompt", "seed", "figures", "figure_images")
    common = {name: getattr(before, name) for name in GenerationRequest.model_fields if name not in own}
    return request.with_changes(**common | files, prompt=before.prompt, shots=tuple(shot.model_dump() for shot in shots))


def copy_shots(before: Path, folder: Path, count: int) -> None:
    for number in range(1, count + 1):
        source, place = before / FOLDER / str(number), folder / FOLDER / str(number)
        place.mkdir(parents=True)
        for name in (LAST, LAST_FRAMES, LOOK, VIDEO_FILE):
            if (source / name).exists():
                link_or_copy(source / name, place / name)
        kept = json.loads((source / RESULT).read_text("utf-8")) | {"is_kept": True}
        (place / RESULT).write_text(json.dumps(kept, ensure_ascii=False), "utf-8")
