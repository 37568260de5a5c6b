"""The files of a storyboard from the page or a program: made shots by their jobs, pictures and the sound as uploads. All that is
queued passes here, so no other file of this machine can be named."""

import os
import re
from pathlib import Path

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.engine.storyboards import split_shot_id
from backend.errors import ClipError, ImageError, JobNotFound, RequestError, SoundError
from backend.schemas.request import GenerationRequest, find_preset
from backend.schemas.settings import Shot
from backend.schemas.shots import JOB, continues_previous, num_overlap_frames, shot_length
from wan_ui.gateway.uploads import UploadKind, check_upload_path
from wan_ui.services.caller import Caller

VIDEO = "video.mp4"
_NAMED = re.compile(r"([\w\-]{1,120})(?:/([1-9]\d?))?")  # a job's id; after it the number of a video that it was given
_PICTURE = re.compile(r"/studio/media/([\w\-]{1,120})/([\w\-.]{1,60})")  # a job's id and a file's name
_ERRORS = {"image": ImageError, "sound": SoundError, "clip": ClipError}


def own_files(wanted: GenerationRequest, engine: Engine, caller: Caller) -> GenerationRequest:
    """The request with the videos of its made shots in place of their jobs. Raises: RequestError for a job that the visitor may
    not see or that has no video, ImageError, ClipError or SoundError for a file that is neither an upload nor of such a job."""
    if not wanted.shots:
        return wanted
    files = Files(engine, caller)
    jobs = [files.job_of(path) for path in wanted.shot_videos]
    named = zip(wanted.shot_videos, jobs, strict=True)
    videos = [files.video_of(path, job) if job else files.checked(path, "clip") for path, job in named]
    shots = [
        shot if shot.video is None else _whole(shot, wanted.shot_videos[shot.video], jobs[shot.video], wanted.fps, engine)
        for shot in wanted.shots
    ]
    return wanted.changed(
        shots=tuple(shot.model_dump() for shot in shots),
        shot_videos=tuple(videos),
        shot_images=tuple(files.checked(path, "image") for path in wanted.shot_images),
        shot_drives=tuple(files.checked(path, "clip") for path in wanted.shot_drives),
        figure_images=tuple(files.checked(path, "image") for path in wanted.figure_images),
        track=wanted.track and files.checked(wanted.track, "sound"),
    )


class Files:
    """What a visitor may name."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine, self._caller = engine, caller

    def job_of(self, path: str) -> Job | None:
        """The job that stands in place of a made shot's video, or of one that it was given itself; None if a file does. Raises:
        RequestError."""
        if not path.startswith(JOB):
            return None
        found = _NAMED.fullmatch(path.removeprefix(JOB))
        job = self._job(found[1]) if found else None
        if job is None or job.deleted is not None:
            raise _not_yours(path)
        return job

    def video_of(self, path: str, job: Job) -> str:
        """The video of a job that stands in its place. Raises: RequestError if there is none."""
        number = _number(path)
        given = job.request.shot_videos
        if number and not 1 <= int(number) <= len(given):
            raise _not_yours(path)
        video = Path(given[int(number) - 1]) if number else job.folder / VIDEO
        if not video.is_file():
            raise _not_yours(path)
        return str(video)

    def checked(self, path: str, what: UploadKind) -> str:
        """The path of an upload, or of a file of a job that the visitor may see, as a job that is made again names it. Raises:
        ImageError, ClipError, SoundError."""
        try:
            return str(check_upload_path(path, what))
        except _ERRORS[what]:
            found = self._of_a_job(path) or self._picture_at(path)
            if found is None:
                raise
            return str(found)

    def _of_a_job(self, path: str) -> Path | None:
        """The file, if it lies in the folder of a job that the visitor may see."""
        runs = self._engine.settings.runs_dir.resolve()
        try:
            found = Path(path).resolve()
        except (OSError, ValueError):
            return None
        if not found.is_relative_to(runs) or not os.path.isfile(found):
            return None
        return found if self._job(found.relative_to(runs).parts[0]) is not None else None

    def _picture_at(self, path: str) -> Path | None:
        """The character's picture at an address of `address_of_picture`, if the visitor may see its job."""
        named = _PICTURE.fullmatch(path)
        job = self._job(named[1]) if named else None
        if named is None or job is None:
            return None
        return next((one for one in map(Path, job.request.figure_images) if one.name == named[2] and one.is_file()), None)

    def _job(self, job_id: str) -> Job | None:
        try:
            job = self._engine.job(job_id)
        except JobNotFound:
            return None
        return job if self._caller.may_see(job.owner) else None


def address_of_picture(path: str) -> str:
    """The address of a job's picture. It names no folder of the server."""
    return f"/studio/media/{Path(path).parent.name}/{Path(path).name}"


def _number(path: str) -> str | None:
    """The number of the given video that the path of a job names, if it names one."""
    found = _NAMED.fullmatch(path.removeprefix(JOB))
    assert found is not None, "the job was found by this path"
    return found[2]


def _not_yours(path: str) -> RequestError:
    return RequestError(f"job={path.removeprefix(JOB)[:60]!r} of a shot", "must be one of your videos", "check its id")


def _whole(shot: Shot, path: str, job: Job | None, fps: int, engine: Engine) -> Shot:
    """The shot with its video's length, and without the frames that it has taken over, where nothing else is said."""
    if job is None or shot.num_frames is not None:
        return shot
    number = _number(path)
    seconds = (_given_frames(job, int(number)) if number else _own_frames(job, engine)) / job.request.fps
    first = 0 if number else first_frame(job, engine) / job.request.fps
    trim = (first, seconds) if first and shot.trim is None else shot.trim
    return shot.model_copy(update={"num_frames": round(seconds * fps), "trim": trim})


def _own_frames(job: Job, engine: Engine) -> int:
    result = engine.library.result(job.id)
    return result.num_frames if result else job.request.total_frames


def _given_frames(job: Job, number: int) -> int:
    """Of the video of this number, from 1, that the storyboard was given."""
    request = job.request
    found = (shot_length(request, place) for place, shot in enumerate(request.shots) if shot.video == number - 1)
    return next(found, request.num_frames)


def first_frame(job: Job, engine: Engine) -> int:
    """How many of the first frames of this shot are those with which the shot before it ends; 0 for any other video."""
    story_id, number = split_shot_id(job.id)
    try:
        story = engine.job(story_id).request
    except JobNotFound:
        return 0
    if not 1 <= number <= len(story.shots) or not continues_previous(story, number - 1):
        return 0
    return num_overlap_frames(story, number - 1, find_preset(story.preset))
