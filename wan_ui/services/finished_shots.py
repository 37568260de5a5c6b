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
from wan_ui.services.media import POSTER, find_visible_job, media_url, not_found_response, shot_poster_name
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


def _describe_shots(engine: Engine, job: Job) -> dict[str, object]:
    shots = [_describe_shot(engine, job, number) for number in range(1, len(job.request.shots) + 1)]
    return {"has_ended": job.has_ended, "shots": [shot for shot in shots if shot is not None]}


def _describe_shot(engine: Engine, story: Job, number: int) -> dict[str, object] | None:
    """Describe the shot with this number, from 1. Return None if the shot is unfinished or deleted."""
    request, place = story.request, story.request.shots[number - 1].video
    if place is not None:  # the shot is an uploaded video
        name = f"shot_videos-{place + 1}"
        facts = {"job": f"{story.id}/{place + 1}", "frames": shot_length(request, number - 1), "fps": request.fps, "first": 0}
        addresses = {"video": media_url(story, f"{name}.mp4"), "poster": media_url(story, shot_poster_name(place + 1))}
        return {"number": number, "given": True, "goes_on": False} | facts | addresses
    try:
        shot_job = story if len(request.shots) == 1 else engine.jobs.find(shot_id(story.id, number))
    except JobNotFound:
        return None
    if shot_job.state != "finished" or shot_job.deleted:
        return None
    result = engine.events.result(shot_job.id)
    if result is None:
        return None
    return {
        "number": number,
        "given": False,
        "goes_on": continues_previous(request, number - 1),
        "job": shot_job.id,
        "frames": result.num_frames,
        "fps": result.fps,
        "first": num_repeated_frames(shot_job, engine),
        "video": media_url(shot_job, VIDEO_FILE),
        "poster": media_url(shot_job, POSTER),
    }
