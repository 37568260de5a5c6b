"""Serves previews and videos to the visitor who made them and to the operator, and a job's video to its ticket's holder.

Gradio's own file route serves all files in its cache or in `allowed_paths` to anybody who knows the path, so no job's
files are there: the data folder is not an allowed path, and the page shows pictures through `media_route` only. That
answers only if (1) the job exists, (2) the cookie of the request is its owner's or the operator's, so that a
guessed or copied address is not enough, and (3) the name, after links are resolved, is a picture or a video below that
job's own folder. All three failures look alike (404), so that the answer does not show which jobs exist.

Programs have no cookie and cannot give the page's password: `/generate` and `/mcp` answer with the address of `video_route`,
which contains a ticket of 256 bits, computed from the operator's key and the job. Anybody with this address can get the
video, until its job is deleted.
"""

import asyncio
import math
import re
from pathlib import Path
from typing import cast
from urllib.parse import quote

from gradio.route_utils import get_root_url
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.job import Job, ListedJob
from backend.errors import Busy, JobNotFound, StudioError
from backend.media.image_inputs import write_original, write_poster
from backend.media.sandbox import ANONYMOUS, EXPORT_SECONDS, LONG_SECONDS, Requester, SandboxCall, SandboxPool
from wan_ui.gateway.access import Access
from wan_ui.services.sandbox_calls import asker, unless_gone

MEDIA_TYPES = {
    ".mp4": "video/mp4", ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif",
}  # fmt: skip
_PREFIX = "studio/media"
_VIDEO_PREFIX = "studio/video"
VIDEO = "video.mp4"
POSTER = "poster.webp"
PRIVATE = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}  # headers of what no cache may keep
POSTER_SIZE = (320, 320)
BEFORE = "before.mp4"
_SHOT_POSTER = re.compile(r"shot_videos-([1-9]\d?)\.webp")


def media_url(job: ListedJob, file: str | Path) -> str:
    """The address of a file of this job: an absolute path below its folder, or a name relative to it."""
    path = Path(file)
    name = path.relative_to(job.folder) if path.is_absolute() else path
    return f"{_PREFIX}/{quote(job.id)}/{quote(name.as_posix())}"


def media_route(engine: Engine, access: Access) -> Route:
    """The route that `media_url` points to."""

    posters = asyncio.Semaphore(1)  # a library asks for many at once

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(owned_job, engine, request, access)
        try:
            path = None if job is None else await unless_gone(request, _file(engine, job, request, posters))
        except Busy as error:
            return too_busy(error)
        return sent(path, cache="private, max-age=86400")

    return Route(f"/{_PREFIX}/{{job_id}}/{{name:path}}", serve, methods=["GET", "HEAD"])


def sent(path: Path | None, *, cache: str) -> Response:
    """The picture or the video at this path; 404 if there is none."""
    if path is None:
        return nothing()
    headers = {"Cache-Control": cache, "X-Content-Type-Options": "nosniff"}
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=headers)


def too_busy(error: Busy) -> Response:
    """What is answered under load: the caller may ask again."""
    headers = PRIVATE | {"retry-after": str(math.ceil(error.retry_seconds))}
    return PlainTextResponse(str(error), status_code=503, headers=headers)


def nothing() -> Response:
    """The same answer about what is not there, and about what is somebody else's."""
    return PlainTextResponse("Not found", status_code=404)


def video_url(job_id: str, request: HTTPConnection, access: Access) -> str:
    """The whole address of a job's video for the program that sent this request."""
    # Gradio reads the URL and the headers alone, which the connection of an event has as well as a request
    root = get_root_url(cast(Request, request), request.url.path, request.scope.get("root_path"))
    return f"{root}/{_VIDEO_PREFIX}/{quote(job_id)}/{access.ticket(job_id)}/{VIDEO}"


def video_route(engine: Engine, access: Access) -> Route:
    """The route that `video_url` points to. Answers 404 alike for a wrong ticket, a missing job and a deleted one."""

    def serve(request: Request) -> Response:
        job_id = request.path_params["job_id"]
        is_known = access.is_ticket(request.path_params["ticket"], job_id)
        return sent(_kept_video(engine, job_id) if is_known else None, cache="private, no-store")

    return Route(f"/{_VIDEO_PREFIX}/{{job_id}}/{{ticket}}/{VIDEO}", serve, methods=["GET", "HEAD"])


def _kept_video(engine: Engine, job_id: str) -> Path | None:
    try:
        job = engine.job(job_id)
    except JobNotFound:
        return None
    return None if job.deleted else file_below(job.folder, VIDEO)


def owned_job(engine: Engine, request: Request, access: Access) -> Job | None:
    """The job in the request's address, if the caller may see it."""
    try:
        job = engine.job(request.path_params["job_id"])
    except JobNotFound:
        return None
    return job if access.may_see(request.cookies, job.owner) else None


async def _file(engine: Engine, job: Job, request: Request, posters: asyncio.Semaphore) -> Path | None:
    if request.path_params["name"] == POSTER:
        async with posters:
            return await poster(job.folder, engine.sandbox)
    if number := _SHOT_POSTER.fullmatch(request.path_params["name"]):
        async with posters:
            return await _poster_of_shot(job.folder, number[1], engine.sandbox)
    if request.path_params["name"] == BEFORE:
        return await before(job, engine.sandbox, asker(request))
    return await asyncio.to_thread(file_below, job.folder, request.path_params["name"])


async def poster(folder: Path, sandbox: SandboxPool) -> Path | None:
    """A small picture of the job's video, made when it is first asked for; None if there is no video."""
    path = folder / POSTER
    return await kept(
        path, sandbox, SandboxCall(work=write_poster, arguments=(folder / VIDEO, path, POSTER_SIZE), seconds=LONG_SECONDS)
    )


def shot_poster(number: int) -> str:
    """The name of a small picture of a video that a storyboard was given, by its number from 1."""
    return f"shot_videos-{number}.webp"


async def _poster_of_shot(folder: Path, number: str, sandbox: SandboxPool) -> Path | None:
    path, source = folder / shot_poster(int(number)), folder / f"shot_videos-{number}.mp4"
    if not source.is_file():
        return None
    return await kept(path, sandbox, SandboxCall(work=write_poster, arguments=(source, path, POSTER_SIZE), seconds=LONG_SECONDS))


async def before(job: Job, sandbox: SandboxPool, who: Requester = ANONYMOUS) -> Path | None:
    """What a video was made from, as long and as large as it is (see `source.original`), made when it is first asked for; None if
    it was made from no clip."""
    path = job.folder / BEFORE
    if not job.request.has_original and not path.is_file():
        return None
    making = SandboxCall(work=write_original, arguments=(job.request, path), seconds=EXPORT_SECONDS, task="comparison")
    return await kept(path, sandbox, making, who)


async def kept(path: Path, sandbox: SandboxPool, making: SandboxCall, who: Requester = ANONYMOUS) -> Path | None:
    """The file at this path, made if it is not there; None if that fails. Raises: Busy."""
    if not path.is_file():
        try:
            await sandbox.run_async(making, who)
        except Busy:
            raise
        except (StudioError, OSError):
            return None
    return path


def file_below(folder: Path, name: str) -> Path | None:
    """The picture or video of this name if it exists below `folder`, even if the name has dots or links in it."""
    if "\0" in name:
        return None
    root = folder.resolve()
    path = (root / name).resolve()
    is_media = path.suffix in MEDIA_TYPES and path.is_file()
    return path if is_media and path.is_relative_to(root) else None
