"""The shots of storyboards: each a video of its own in the library, and kept where a storyboard is made again from a later."""

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

from backend.engine.folder import link_or_copy, open_inputs, write_request
from backend.engine.job import Job
from backend.engine.store import Store
from backend.engine.summary import RequestSummary
from backend.errors import JobNotFound, RequestError
from backend.media.film import write_storyboard_film
from backend.media.sandbox import EXPORT_SECONDS, SandboxCall, Steps
from backend.schemas.events import Finished, ShotFinished, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import Shot
from backend.schemas.shots import FILES, FOLDER, LAST, LAST_FRAMES, LOOK, RESULT, VIDEO


def shot_id(story_id: str, number: int) -> str:
    """The id of the job that a storyboard's shot is in the library; `number` counts from 1."""
    return f"{story_id}-shot-{number}"


def split_shot_id(job_id: str) -> tuple[str, int]:
    """The storyboard's job and the number of a shot, of an id that `shot_id` made; the id itself and 0 of any other."""
    found = re.fullmatch(r"(.+)-shot-(\d{1,6})", job_id)
    return (found[1], int(found[2])) if found else (job_id, 0)


def add_shot(store: Store, runs: Path, story: Job, event: ShotFinished, engine: str) -> None:
    """Puts a shot into the library, as a finished video of the storyboard's owner; does nothing if it is there already, or is
    all of its storyboard. Raises: OSError, StudioError, sqlite3.Error."""
    if event.total == 1:
        return
    job_id = shot_id(story.id, event.index)
    try:
        store.job(job_id)
        return
    except JobNotFound:
        pass
    folder = runs / job_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    request = event.result.request
    request = write_request(request, open_inputs(request), folder)
    link_or_copy(Path(event.result.path), folder / VIDEO)
    seconds = {"total": round(sum(event.result.seconds.values()), 3)} | event.result.seconds
    made = Finished(replace(event.result, path=str(folder / VIDEO), request=request, seconds=seconds))
    add_finished_job(store, job_id, story.owner, made, engine, story.project)


def add_finished_job(store: Store, job_id: str, owner: str, event: Finished, engine: str, project: str = "") -> None:
    """Puts a video that is there already into the library, and into this project. Raises: sqlite3.Error."""
    request, folder = event.result.request, Path(event.result.path).parent
    job = Job(
        id=job_id,
        owner=owner,
        summary=RequestSummary.from_request(request),
        request=request,
        state="queued",
        created=time.time(),
        started=None,
        ended=None,
        folder=folder,
        project=project,
    )
    store.add(job, engine)
    store.append_event(job_id, event)


def cut_storyboard(request: GenerationRequest, folder: Path) -> Steps[Finished]:
    """Cuts a storyboard whose shots are all made, in its job's folder, as steps: no model is needed. Raises: StudioError."""
    path = folder / VIDEO
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
    """The request that makes this storyboard again from shot `number` (from 1) on: the `request` with the earlier shots as they
    were; its figures are those of the later ones. Raises: RequestError if there is no such shot, or the earlier ones are not here
    any more."""
    before = story.request
    if not before.shots or not 1 <= number <= len(before.shots):
        rule = f"must be one of its {len(before.shots)} shots" if before.shots else "belongs to a storyboard, and this is none"
        raise RequestError(f"from_shot={number}", rule, "choose another")
    if any(not (story.folder / FOLDER / str(kept) / RESULT).is_file() for kept in range(1, number)):
        raise RequestError(f"from_shot={number}", "needs the shots before it, which are no longer here", "make all of them again")
    files = {role: getattr(before, role) + getattr(request, role) for role in FILES.values()}
    later = tuple(_moved(shot, before) for shot in request.shots[number - 1 :])
    shots = tuple(_settled(before, index) for index in range(number - 1)) + later
    own = ("shots", "prompt", "seed", "figures", "figure_images")
    common = {name: getattr(before, name) for name in GenerationRequest.model_fields if name not in own}
    return request.changed(**common | files, prompt=before.prompt, shots=tuple(shot.model_dump() for shot in shots))


def _moved(shot: Shot, before: GenerationRequest) -> Shot:
    """The shot with its files after those of the storyboard before."""
    places = {kind: getattr(shot, kind) for kind in FILES if getattr(shot, kind) is not None}
    return shot.model_copy(update={kind: place + len(getattr(before, FILES[kind])) for kind, place in places.items()})


def _settled(request: GenerationRequest, index: int) -> Shot:
    """A shot with its seed, whatever the storyboard's becomes."""
    shot = request.shots[index]
    if shot.video is not None:
        return shot
    return shot.model_copy(update={"seed": (request.seed + index) % (1 << 32) if shot.seed is None else shot.seed})


def copy_shots(before: Path, folder: Path, count: int) -> None:
    """Copies the first `count` shots of the storyboard in the folder `before` to the one in `folder`. Raises: OSError."""
    for number in range(1, count + 1):
        source, place = before / FOLDER / str(number), folder / FOLDER / str(number)
        place.mkdir(parents=True)
        for name in (LAST, LAST_FRAMES, LOOK, VIDEO):
            if (source / name).exists():
                link_or_copy(source / name, place / name)
        kept = json.loads((source / RESULT).read_text("utf-8")) | {"is_kept": True}
        (place / RESULT).write_text(json.dumps(kept, ensure_ascii=False), "utf-8")
