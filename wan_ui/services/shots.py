"""Resolve the files of a storyboard from the page or a program.

A generated shot is given by the id of its job. Images and the soundtrack are uploads. Every queued storyboard passes these
checks, so a request cannot name any other file of this machine.
"""

import os
import re
from pathlib import Path

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.engine.storyboards import split_shot_id
from backend.errors import ClipError, ImageError, JobNotFound, RequestError, SoundError
from backend.schemas.events import VIDEO_FILE
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import Shot
from backend.schemas.shots import JOB_PATH_PREFIX, continues_previous, num_overlap_frames, shot_length
from wan_ui.gateway.uploads import UploadKind, check_upload_path
from wan_ui.services.caller import Caller

_NAMED = re.compile(r"([\w\-]{1,120})(?:/([1-9]\d?))?")  # a job's id, then the number of an uploaded video of the job
_PICTURE = re.compile(r"/studio/media/([\w\-]{1,120})/([\w\-.]{1,60})")  # a job's id and a file's name
_ERRORS = {"image": ImageError, "sound": SoundError, "clip": ClipError}


def resolve_shot_files(wanted: GenerationRequest, engine: Engine, caller: Caller) -> GenerationRequest:
    """Return the request with video paths in place of job ids, after a check of all files.

    Raises: RequestError for a job that the visitor may not see or that has no video. ImageError, ClipError or SoundError for a
    file that is neither an upload nor a file of a visible job.
    """
    if not wanted.shots:
        return wanted
    files = VisibleFiles(engine, caller)
    jobs = [files.find_job(path) for path in wanted.shot_videos]
    named = zip(wanted.shot_videos, jobs, strict=True)
    videos = [files.find_video(path, job) if job else files.check_path(path, "clip") for path, job in named]
    shots = [
        shot if shot.video is None else _complete_shot(shot, wanted.shot_videos[shot.video], jobs[shot.video], wanted.fps, engine)
        for shot in wanted.shots
    ]
    return wanted.with_changes(
        shots=tuple(shot.model_dump() for shot in shots),
        shot_videos=tuple(videos),
        shot_images=tuple(files.check_path(path, "image") for path in wanted.shot_images),
        shot_drives=tuple(files.check_path(path, "clip") for path in wanted.shot_drives),
        figure_images=tuple(files.check_path(path, "image") for path in wanted.figure_images),
        track=wanted.track and files.check_path(wanted.track, "sound"),
    )


class VisibleFiles:
    """The files that a visitor may use."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine, self._caller = engine, caller

    def find_job(self, path: str) -> Job | None:
        """Return the job that a shot's video path refers to, None for an uploaded file.

        Raises: RequestError if the visitor may not see the job.
        """
        if not path.startswith(JOB_PATH_PREFIX):
            return None
        match = _NAMED.fullmatch(path.removeprefix(JOB_PATH_PREFIX))
        job = self._find_visible_job(match[1]) if match else None
        if job is None or job.deleted is not None:
            raise _not_visible_error(path)
        return job

    def find_video(self, path: str, job: Job) -> str:
        """Return the path of the job's video, or of an uploaded video of the job. Raises: RequestError if it is missing."""
        number = _video_number(path)
        given = job.request.shot_videos
        if number and not 1 <= int(number) <= len(given):
            raise _not_visible_error(path)
        video = Path(given[int(number) - 1]) if number else job.folder / VIDEO_FILE
        if not video.is_file():
            raise _not_visible_error(path)
        return str(video)

    def check_path(self, path: str, what: UploadKind) -> str:
        """Return the path of a file on this server if the visitor may use the file.

        Visitors may use uploads and the files of jobs that they may see. Regenerated storyboards use files of earlier jobs.
        Raises: ImageError, ClipError or SoundError, by the kind of upload, if the visitor may not use the file.
        """
        try:
            return str(check_upload_path(path, what))
        except _ERRORS[what]:
            found = self._find_job_file(path) or self._find_character_image(path)
            if found is None:
                raise
            return str(found)

    def _find_job_file(self, path: str) -> Path | None:
        """Return the resolved path if the file is in the folder of a visible job, else None."""
        runs = self._engine.settings.runs_dir.resolve()
        try:
            resolved = Path(path).resolve()
        except (OSError, ValueError):
            return None
        if not resolved.is_relative_to(runs) or not os.path.isfile(resolved):
            return None
        return resolved if self._find_visible_job(resolved.relative_to(runs).parts[0]) is not None else None

    def _find_character_image(self, path: str) -> Path | None:
        """Return the character image at an address of `character_image_url`, None if the visitor may not see its job."""
        named = _PICTURE.fullmatch(path)
        job = self._find_visible_job(named[1]) if named else None
        if named is None or job is None:
            return None
        return next((one for one in map(Path, job.request.figure_images) if one.name == named[2] and one.is_file()), None)

    def _find_visible_job(self, job_id: str) -> Job | None:
        try:
            job = self._engine.jobs.find(job_id)
        except JobNotFound:
            return None
        return job if self._caller.may_see(job.owner) else None


def character_image_url(path: str) -> str:
    """Return the address of a job's character image. It contains no path of the server."""
    return f"/studio/media/{Path(path).parent.name}/{Path(path).name}"


def _video_number(path: str) -> str | None:
    """Return the number of an uploaded video, which follows the job's id in `path`. Return None for the job's own video."""
    match = _NAMED.fullmatch(path.removeprefix(JOB_PATH_PREFIX))
    assert match is not None, "the job was found by this path"
    return match[2]


def _not_visible_error(path: str) -> RequestError:
    job_id = path.removeprefix(JOB_PATH_PREFIX)[:60]
    return RequestError(f"job={job_id!r} of a shot", "must be one of your videos", "check its id")


def _complete_shot(shot: Shot, path: str, job: Job | None, fps: int, engine: Engine) -> Shot:
    """Set a shot's `num_frames` and `trim` if missing. The trim removes frames that repeat the previous shot's end."""
    if job is None or shot.num_frames is not None:
        return shot
    number = _video_number(path)
    seconds = (_num_uploaded_frames(job, int(number)) if number else _num_generated_frames(job, engine)) / job.request.fps
    first = 0 if number else num_repeated_frames(job, engine) / job.request.fps
    trim = (first, seconds) if first and shot.trim is None else shot.trim
    return shot.model_copy(update={"num_frames": round(seconds * fps), "trim": trim})


def _num_generated_frames(job: Job, engine: Engine) -> int:
    result = engine.events.result(job.id)
    return result.num_frames if result else job.request.total_frames


def _num_uploaded_frames(job: Job, number: int) -> int:
    """Return the number of frames of the storyboard's uploaded video `number`, counted from 1."""
    request = job.request
    found = (shot_length(request, place) for place, shot in enumerate(request.shots) if shot.video == number - 1)
    return next(found, request.num_frames)


def num_repeated_frames(job: Job, engine: Engine) -> int:
    """Return how many frames at the start of the job's video repeat the end of the previous shot.

    Return 0 if the job is not a storyboard's shot that continues the previous shot.
    """
    story_id, number = split_shot_id(job.id)
    try:
        story = engine.jobs.find(story_id).request
    except JobNotFound:
        return 0
    if not 1 <= number <= len(story.shots) or not continues_previous(story, number - 1):
        return 0
    return num_overlap_frames(story, number - 1, story.resolved_preset)
