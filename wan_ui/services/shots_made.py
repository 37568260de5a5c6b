"""Says which shots of a storyboard are made, and where their videos are, to those who may see it. The page's timeline asks."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.engine.storyboards import shot_id
from backend.errors import JobNotFound
from backend.schemas.shots import continues_previous, shot_length
from wan_ui.gateway.access import Access
from wan_ui.services.media import POSTER, VIDEO, media_url, nothing, owned_job, shot_poster
from wan_ui.services.shots import first_frame

_PREFIX = "studio/shots"
_HEADERS = {"Cache-Control": "private, no-store"}


def shots_route(engine: Engine, access: Access) -> Route:
    """`/studio/shots/JOB`. Answers 404 alike for somebody else's job, a missing one, and one that is no storyboard."""

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(owned_job, engine, request, access)
        if job is None or job.deleted or not job.request.shots:
            return nothing()
        return JSONResponse(await asyncio.to_thread(_told, engine, job), headers=_HEADERS)

    return Route(f"/{_PREFIX}/{{job_id}}", serve, methods=["GET"])


def _told(engine: Engine, job: Job) -> dict[str, Any]:
    shots = [_shot(engine, job, number) for number in range(1, len(job.request.shots) + 1)]
    return {"has_ended": job.has_ended, "shots": [shot for shot in shots if shot is not None]}


def _shot(engine: Engine, story: Job, number: int) -> dict[str, Any] | None:
    """The shot of this number, from 1; None if it is not made, or no longer there."""
    request, place = story.request, story.request.shots[number - 1].video
    if place is not None:  # a video that was given
        name = f"shot_videos-{place + 1}"
        facts = {"job": f"{story.id}/{place + 1}", "frames": shot_length(request, number - 1), "fps": request.fps, "first": 0}
        addresses = {"video": media_url(story, f"{name}.mp4"), "poster": media_url(story, shot_poster(place + 1))}
        return {"number": number, "given": True, "goes_on": False} | facts | addresses
    made = _video(engine, story, number)
    if made is None or made.state != "finished" or made.deleted:
        return None
    result = engine.library.result(made.id)
    if result is None:
        return None
    return {
        "number": number,
        "given": False,
        "goes_on": continues_previous(request, number - 1),
        "job": made.id,
        "frames": result.num_frames,
        "fps": result.fps,
        "first": first_frame(made, engine),
        "video": media_url(made, VIDEO),
        "poster": media_url(made, POSTER),
    }


def _video(engine: Engine, story: Job, number: int) -> Job | None:
    if len(story.request.shots) == 1:
        return story
    try:
        return engine.job(shot_id(story.id, number))
    except JobNotFound:
        return None
