"""List the finished shots of a storyboard and the addresses of their videos, for the page's timeline."""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.engine.storyboards import shot_id
from backend.errors import JobNotFound
from backend.schemas.events import VIDEO_FILE
from backend.schemas.shots import continues_previous, shot_length
from wan_ui.gateway.access import Access
from wan_ui.services.media import POSTER, find_visible_job, media_url, not_found_response
from wan_ui.services.shots import num_repeated_frames

_PREFIX = "studio/shots"
_HEADERS = {"Cache-Control": "private, no-store"}


def shots_route(engine: Engine, access: Access) -> Route:
    """Return the route `/studio/shots/JOB`. It answers 404 for another visitor's job, a missing job, and a job without shots."""

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(find_visible_job, engine, request, access)
        if job is None or job.deleted or not job.request.shots:
            return not_found_response()
        return JSONResponse(await asyncio.to_thread(_describe_shots, engine, job), headers=_HEADERS)

    return Route(f"/{_PREFIX}/{{job_id}}", serve, methods=["GET"])


def _describe_shots(engine: Engine, story: Job) -> dict[str, object]:
    """Describe the uploaded shots, and the generated shots that are finished and not deleted."""
    request, shots = story.request, []
    for place, shot in enumerate(request.shots):
        if shot.video is not None:
            name = f"shot_videos-{shot.video + 1}"
            facts = {"job": f"{story.id}/{shot.video + 1}", "frames": shot_length(request, place), "fps": request.fps, "first": 0}
            addresses = {"video": media_url(story, f"{name}.mp4"), "poster": media_url(story, f"{name}.webp")}
            shots.append({"number": place + 1, "given": True, "goes_on": False} | facts | addresses)
            continue
        try:
            job = story if len(request.shots) == 1 else engine.jobs.find(shot_id(story.id, place + 1))
        except JobNotFound:
            continue
        result = engine.events.result(job.id) if job.state == "finished" and not job.deleted else None
        if result is not None:
            facts = {"job": job.id, "frames": result.num_frames, "fps": result.fps, "first": num_repeated_frames(job, engine)}
            addresses = {"video": media_url(job, VIDEO_FILE), "poster": media_url(job, POSTER)}
            shots.append({"number": place + 1, "given": False, "goes_on": continues_previous(request, place)} | facts | addresses)
    return {"has_ended": story.has_ended, "shots": shots}
