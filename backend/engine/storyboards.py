"""The shots of storyboards: each a video of its own in the library, and kept where a storyboard is made again from a later."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from backend.contract.events import Finished, ShotMade
from backend.contract.request import GenerationRequest
from backend.contract.shots import FOLDER, LAST, LAST_FRAMES, LOOK, RESULT, VIDEO
from backend.engine.folder import open_inputs, write_request
from backend.engine.job import Job
from backend.engine.store import Store
from backend.errors import JobNotFound, RequestError


def shot_id(story_id: str, number: int) -> str:
    """The id of the job that a storyboard's shot is in the library; `number` counts from 1."""
    return f"{story_id}-shot-{number}"


def add_shot(store: Store, runs: Path, story: Job, event: ShotMade, engine: str) -> None:
    """Puts a shot into the library, as a finished video of the storyboard's owner; does nothing if it is there already. Raises:
    OSError, StudioError, sqlite3.Error."""
    job_id = shot_id(story.id, event.index)
    try:
        store.job(job_id)
        return
    except JobNotFound:
        pass
    folder, now = runs / job_id, time.time()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    request = event.result.request
    request = write_request(request, open_inputs(request), folder)
    _link(Path(event.result.path), folder / VIDEO)
    job = Job(
        id=job_id,
        owner=story.owner,
        request=request,
        state="queued",
        created=now,
        started=None,
        ended=None,
        folder=folder,
        project=story.project,
    )
    store.add(job, engine)
    store.append(job_id, Finished(replace(event.result, path=str(folder / VIDEO), request=request)))


def again_from(story: Job, number: int, request: GenerationRequest) -> GenerationRequest:
    """The request that makes this storyboard again from shot `number` (from 1) on: the `request` with the earlier shots as they
    were. Raises: RequestError if there is no such shot, or the earlier ones are not here any more."""
    before = story.request
    if not before.shots or not 1 <= number <= len(before.shots):
        rule = f"must be one of its {len(before.shots)} shots" if before.shots else "belongs to a storyboard, and this is none"
        raise RequestError(f"from_shot={number}", rule, "choose another")
    if any(not (story.folder / FOLDER / str(kept) / RESULT).is_file() for kept in range(1, number)):
        raise RequestError(f"from_shot={number}", "needs the shots before it, which are no longer here", "make all of them again")
    shots = tuple(_settled(before, index) for index in range(number - 1)) + request.shots[number - 1 :]
    common = {name: getattr(before, name) for name in GenerationRequest.model_fields if name not in ("shots", "prompt", "seed")}
    return request.changed(**common, prompt=before.prompt, shots=tuple(shot.model_dump() for shot in shots))


def _settled(request: GenerationRequest, index: int):
    """A shot with its seed, whatever the storyboard's becomes."""
    shot = request.shots[index]
    return shot.model_copy(update={"seed": (request.seed + index) % (1 << 32) if shot.seed is None else shot.seed})


def keep_shots(before: Path, folder: Path, count: int) -> None:
    """Copies the first `count` shots of the storyboard in the folder `before` to the one in `folder`. Raises: OSError."""
    for number in range(1, count + 1):
        source, place = before / FOLDER / str(number), folder / FOLDER / str(number)
        place.mkdir(parents=True)
        for name in (LAST, LAST_FRAMES, LOOK, VIDEO):
            if (source / name).exists():
                _link(source / name, place / name)
        kept = json.loads((source / RESULT).read_text("utf-8")) | {"is_kept": True}
        (place / RESULT).write_text(json.dumps(kept, ensure_ascii=False), "utf-8")


def _link(source: Path, place: Path) -> None:
    """The same file under another name, or a copy where there can be no link. Neither is ever written again."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)
