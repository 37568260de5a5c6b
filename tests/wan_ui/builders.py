"""Values that the studio's unit tests share."""

from pathlib import Path

from backend.engine.job import Job, RequestSummary
from backend.schemas.events import VideoResult
from backend.schemas.request import GenerationRequest
from presets import load_preset
from wan_ui.i18n.languages import LANGUAGES

CHINESE = LANGUAGES["zh"]


def a_request(**overrides) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset("wan-tiny"), **{"prompt": "a red circle", "seed": 7} | overrides)


def a_job(folder: Path = Path("/data/runs/job-1"), owner: str = "visitor-1", **overrides) -> Job:
    return Job(
        id=folder.name,
        owner=owner,
        summary=RequestSummary.from_request(a_request(**overrides)),
        request=a_request(**overrides),
        state="running",
        created=1.0,
        started=2.0,
        ended=None,
        folder=folder,
    )


def a_result(job: Job, *, has_sound: bool = False, **seconds: float) -> VideoResult:
    request = job.request
    return VideoResult(
        path=str(job.folder / "video.mp4"),
        fps=request.fps,
        num_frames=request.num_frames,
        width=request.width,
        height=request.height,
        seconds=seconds or {"denoise": 3.0, "total": 4.2},
        request=request,
        versions={},
        has_sound=has_sound or request.video is not None,
    )


class FakeEngine:
    """Engine for tests of the studio's parts: it answers from the given jobs, events and position."""

    def __init__(self, jobs: list[Job], events: list | None = None, position: int | None = None):
        self._jobs, self._events, self._position = {job.id: job for job in jobs}, events or [], position
        self.jobs = self.event_log = self.queue = self.pool = self

    def find(self, job_id: str) -> Job:
        from backend.errors import JobNotFound

        if job_id not in self._jobs:
            raise JobNotFound(f"job {job_id}")
        return self._jobs[job_id]

    def list_jobs(self, owner: str | None = None, *, most: int | None = None, seed: int | None = None) -> list[Job]:
        return [job for job in self._jobs.values() if owner in (None, job.owner) and seed in (None, job.request.seed)][:most]

    def follow(self, job_id: str, after: int = 0):
        self.find(job_id)
        return iter(enumerate(self._events, 1))

    def position(self, job_id: str) -> int | None:
        return self._position

    def is_held(self, job_id: str) -> bool:
        return False

    def status(self, job_id: str | None = None):
        from backend.schemas.worker import WorkerStatus

        return WorkerStatus(state="loading", detail="Loading the square")
