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
    found = [files.find_video(path) for path in wanted.shot_videos]
    videos = [video or files.check_path(path, "clip") for path, (video, _, _) in zip(wanted.shot_videos, found, strict=True)]
    shots = []
    for shot in wanted.shots:
        _, job, number = (None, None, 0) if shot.video is None else found[shot.video]
        shots.append(_complete_shot(shot, job, number, wanted.fps, engine))
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

    def find_video(self, path: str) -> tuple[str | None, Job | None, int]:
        """Return the video that a shot's video path refers to, its job, and the number of an uploaded video of the job.

        The number is 0 for the job's own video. For an uploaded file, return (None, None, 0).

        Raises: RequestError if the visitor may not see the job, or the job has no such video.
        """
        if not path.startswith(JOB_PATH_PREFIX):
            return None, None, 0
        job_id = path.removeprefix(JOB_PATH_PREFIX)
        match = _NAMED.fullmatch(job_id)
        job = self._find_visible_job(match[1]) if match else None
        if match and job and job.deleted is None:
            number, videos = int(match[2] or 0), [job.folder / VIDEO_FILE, *map(Path, job.request.shot_videos)]
            if number < len(videos) and videos[number].is_file():
                return str(videos[number]), job, number
        raise RequestError(f"job={job_id[:60]!r} of a shot", "must be one of your videos", "check its id")

    def check_path(self, path: str, what: UploadKind) -> str:
        """Return the path of a file on this server if the visitor may use the file.

        Visitors may use uploads and the files of jobs that they may see. Regenerated storyboards use files of earlier jobs.
        Raises: ImageError, ClipError or SoundError, by the kind of upload, if the visitor may not use the file.
        """
        try:
            return str(check_upload_path(path, what))
        except _ERRORS[what]:
            found = self._find_file(path)
            if found is None:
                raise
            return str(found)

    def _find_file(self, path: str) -> Path | None:
        """Return the resolved file in the folder of a visible job, or the image at an address of `services.characters`."""
        runs = self._engine.settings.runs_dir.resolve()
        try:
            resolved = Path(path).resolve()
        except (OSError, ValueError):
            return None
        is_of_job = resolved.is_relative_to(runs) and os.path.isfile(resolved)
        if is_of_job and self._find_visible_job(resolved.relative_to(runs).parts[0]) is not None:
            return resolved
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


def _complete_shot(shot: Shot, job: Job | None, number: int, fps: int, engine: Engine) -> Shot:
    """Set a shot's `num_frames` and `trim` if missing. The trim removes frames that repeat the previous shot's end.

    `number` is the number of the job's uploaded video, from 1, and 0 for the job's own video.
    """
    if job is None or shot.num_frames is not None:
        return shot
    request, first = job.request, 0.0
    if number:
        given = (shot_length(request, place) for place, one in enumerate(request.shots) if one.video == number - 1)
        frames = next(given, request.num_frames)
    else:
        result = engine.events.result(job.id)
        frames = result.num_frames if result else request.total_frames
        first = num_repeated_frames(job, engine) / request.fps
    seconds = frames / request.fps
    trim = (first, seconds) if first and shot.trim is None else shot.trim
    return shot.model_copy(update={"num_frames": round(seconds * fps), "trim": trim})


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
