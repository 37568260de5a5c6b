"""Serve previews and videos to their owner and the operator, and a job's video to programs with its ticket.

The file route of Gradio serves all files in its cache or in `allowed_paths` to any caller who knows the path. Therefore the data
folder is not an allowed path, and the page shows images and videos only through `media_route`. This route checks that

1. the job exists,
2. the cookie in the request identifies the owner or the operator, so that a guessed or copied address is not enough,
3. the name, with symbolic links resolved, is an image or video below the job's own folder.

All failures give the same response (404), so that it does not reveal which jobs exist.

Programs have no cookie and cannot log in. `/generate` and `/mcp` return the address of `video_route`, which contains a ticket of
256 bits, computed from the operator's key and the job's id. Any caller with this address can read the video until it is deleted.
"""

import asyncio
import contextlib
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
from backend.schemas.events import VIDEO_FILE
from wan_ui.gateway.access import Access
from wan_ui.services.sandbox_calls import cancel_on_disconnect, requester_from_request

MEDIA_TYPES = {
    ".mp4": "video/mp4", ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif",
}  # fmt: skip
_PREFIX = "studio/media"
_VIDEO_PREFIX = "studio/video"
POSTER = "poster.webp"
PRIVATE = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}  # responses that no cache may store
POSTER_SIZE = (320, 320)
BEFORE = "before.mp4"
_SHOT_POSTER = re.compile(r"shot_videos-([1-9]\d?)\.webp")


def media_url(job: ListedJob, file: str | Path) -> str:
    """Return the address of a job's file. `file` is an absolute path in the job's folder, or relative to it."""
    path = Path(file)
    name = path.relative_to(job.folder) if path.is_absolute() else path
    return f"{_PREFIX}/{quote(job.id)}/{quote(name.as_posix())}"


def media_route(engine: Engine, access: Access) -> Route:
    """Return the route that serves the addresses of `media_url`."""

    posters = asyncio.Semaphore(1)  # one at a time: the library requests hundreds together

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(find_visible_job, engine, request, access)
        try:
            path = None if job is None else await cancel_on_disconnect(request, _find_media(engine, job, request, posters))
        except Busy as error:
            return busy_response(error)
        return file_response(path, cache="private, max-age=86400")

    return Route(f"/{_PREFIX}/{{job_id}}/{{name:path}}", serve, methods=["GET", "HEAD"])


def file_response(path: Path | None, *, cache: str) -> Response:
    """Return a response with the image or video at `path`. Without a path, return the 404 response."""
    if path is None:
        return not_found_response()
    headers = {"Cache-Control": cache, "X-Content-Type-Options": "nosniff"}
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=headers)


def busy_response(error: Busy) -> Response:
    """Return the response of a busy server (503), with the time after which the caller may try again."""
    headers = PRIVATE | {"retry-after": str(math.ceil(error.retry_seconds))}
    return PlainTextResponse(str(error), status_code=503, headers=headers)


def not_found_response() -> Response:
    """Return the same 404 for missing files and for files of other visitors."""
    return PlainTextResponse("Not found", status_code=404)


def video_url(job_id: str, request: HTTPConnection, access: Access) -> str:
    """Return the full URL of a job's video for the program that sent the request."""
    # `get_root_url` reads only the URL and the headers. A Gradio event's connection has both, so it can replace the request.
    root = get_root_url(cast(Request, request), request.url.path, request.scope.get("root_path"))
    return f"{root}/{_VIDEO_PREFIX}/{quote(job_id)}/{access.ticket(job_id)}/{VIDEO_FILE}"


def video_route(engine: Engine, access: Access) -> Route:
    """Return the route that serves the addresses of `video_url`.

    It answers 404 for a wrong ticket, a missing job and a deleted job.
    """

    def serve(request: Request) -> Response:
        job_id, video = request.path_params["job_id"], None
        if access.is_ticket(request.path_params["ticket"], job_id):
            with contextlib.suppress(JobNotFound):
                job = engine.jobs.find(job_id)
                video = None if job.deleted else find_file_below(job.folder, VIDEO_FILE)
        return file_response(video, cache="private, no-store")

    return Route(f"/{_VIDEO_PREFIX}/{{job_id}}/{{ticket}}/{VIDEO_FILE}", serve, methods=["GET", "HEAD"])


def find_visible_job(engine: Engine, request: Request, access: Access) -> Job | None:
    """Return the job in the request's address, None if it is missing or the caller may not see it."""
    try:
        job = engine.jobs.find(request.path_params["job_id"])
    except JobNotFound:
        return None
    return job if access.may_see(request.cookies, job.owner) else None


async def _find_media(engine: Engine, job: Job, request: Request, posters: asyncio.Semaphore) -> Path | None:
    name = request.path_params["name"]
    if name == POSTER:
        async with posters:
            return await make_poster(job.folder, engine.sandbox)
    if number := _SHOT_POSTER.fullmatch(name):
        async with posters:
            video = f"shot_videos-{number[1]}.mp4"
            return await make_poster(job.folder, engine.sandbox, video, name) if (job.folder / video).is_file() else None
    if name == BEFORE:
        return await make_before_video(job, engine.sandbox, requester_from_request(request))
    return await asyncio.to_thread(find_file_below, job.folder, name)


async def make_poster(folder: Path, sandbox: SandboxPool, video: str = VIDEO_FILE, poster: str = POSTER) -> Path | None:
    """Return the path of a small image of a video in a job's folder, created at the first request.

    Return None if the video is missing.
    """
    path = folder / poster
    making = SandboxCall(work=write_poster, arguments=(folder / video, path, POSTER_SIZE), seconds=LONG_SECONDS)
    return await ensure_file(path, sandbox, making)


async def make_before_video(job: Job, sandbox: SandboxPool, who: Requester = ANONYMOUS) -> Path | None:
    """Return the path of the video's source clip, cut to the video's length and size. See `backend.media.source`.

    The file is created at the first request. Return None for a video without a source clip.
    """
    path = job.folder / BEFORE
    if not job.request.has_original and not path.is_file():
        return None
    making = SandboxCall(work=write_original, arguments=(job.request, path), seconds=EXPORT_SECONDS, task="comparison")
    return await ensure_file(path, sandbox, making, who)


async def ensure_file(path: Path, sandbox: SandboxPool, making: SandboxCall, who: Requester = ANONYMOUS) -> Path | None:
    """Return `path`. If the file is missing, run `making` to create it. Return None if `making` fails. Raises: Busy."""
    if not path.is_file():
        try:
            await sandbox.run_async(making, who)
        except Busy:
            raise
        except (StudioError, OSError):
            return None
    return path


def find_file_below(folder: Path, name: str) -> Path | None:
    """Return the path of an existing image or video in `folder` or its subfolders, None otherwise.

    Dots and symbolic links in `name` are resolved first, so they cannot lead out of `folder`.
    """
    if "\0" in name:
        return None
    root = folder.resolve()
    path = (root / name).resolve()
    is_media = path.suffix in MEDIA_TYPES and path.is_file()
    return path if is_media and path.is_relative_to(root) else None
