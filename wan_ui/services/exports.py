"""Serve a job's video in another format (webm, gif, animated webp, PNG frames in a zip) or with more frames per second.

Each download converts the video again, and only callers who may see the video receive it. No converted file is stored.
"""

import asyncio
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.media.export import ExportLimits, write_export
from backend.media.sandbox import EXPORT_SECONDS, TASK_PROCESSOR_SECONDS, SandboxCall
from backend.media.smooth import write_smooth
from backend.schemas.events import VIDEO_FILE
from backend.schemas.formats import BOUNDED, FORMATS, MEDIA_TYPES, SUFFIXES
from wan_ui.gateway.access import Access
from wan_ui.i18n.english import Texts
from wan_ui.services.media import find_visible_job, not_found_response
from wan_ui.services.sandbox_calls import requester_from_request
from wan_ui.services.sending import Downloads, send_generated_file

MEGABYTES = 8  # the largest size of a gif or webp, which chat and mail programs accept
LONGEST_SECONDS, LONGEST_SIDE, MOST_FPS = 20, 720, 25  # limits of a gif or webp: seconds, pixels, frames per second
ANIMATION_PROCESSOR_SECONDS = 120.0
MOST_PNG_BYTES = 500_000_000  # the limit for all frames as PNG images
# Assumptions about disk space. The first attempt at a gif or webp can need 8 times MEGABYTES. A webm or smooth video can have 4
# times the size of its source.
_FIRST_TRY_RATIO, _MAX_GROWTH = 8, 4
SMOOTH, SMOOTH_FPS = "smooth", 60  # name of the format that is an mp4 with 60 frames per second
_PREFIX = "studio/export"


def export_url(job: Job, form: str) -> str:
    return f"{_PREFIX}/{quote(job.id)}/{form}"


def export_menu(job: Job, texts: Texts) -> str:
    """Render the menu of links to the video's other formats."""
    names = {"webm": texts.export_webm, "gif": texts.export_gif, "webp": texts.export_webp, "png": texts.export_png}
    smooth = {SMOOTH: texts.export_smooth} if job.request.fps < SMOOTH_FPS else {}
    links = "".join(
        f'<a href="{export_url(job, form)}" data-task download="{escape(_file_name(job, form))}">'
        f"{escape(name.format(size=MEGABYTES, fps=SMOOTH_FPS, seconds=LONGEST_SECONDS, side=LONGEST_SIDE))}</a>"
        for form, name in (smooth | names).items()
    )
    return f'<details class="menu"><summary>{escape(texts.export)}</summary><div>{links}</div></details>'


def export_route(engine: Engine, access: Access, downloads: Downloads) -> Route:
    """Return the route that serves the addresses of `export_url`.

    It answers 404 for another visitor's job, a missing job and an unknown format.
    """

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(find_visible_job, engine, request, access)
        form = request.path_params["form"]
        if job is None or job.deleted or form not in (*FORMATS, SMOOTH) or not (job.folder / VIDEO_FILE).is_file():
            return not_found_response()
        video, who = job.folder / VIDEO_FILE, requester_from_request(request, access)
        if form in BOUNDED:
            sides = {"longest_side": LONGEST_SIDE, "max_seconds": LONGEST_SECONDS, "max_fps": MOST_FPS}
            limits, most = ExportLimits(max_bytes=int(MEGABYTES * 1_000_000), **sides), ANIMATION_PROCESSOR_SECONDS
            num_bytes = int(_FIRST_TRY_RATIO * MEGABYTES * 1_000_000)
        else:
            limits, most = ExportLimits(max_bytes=MOST_PNG_BYTES if form == "png" else None), TASK_PROCESSOR_SECONDS
            num_bytes = MOST_PNG_BYTES if form == "png" else _MAX_GROWTH * video.stat().st_size

        async def make(path: Path) -> None:
            call = SandboxCall(work=write_smooth, arguments=(video, SMOOTH_FPS, path), seconds=EXPORT_SECONDS, task="export")
            if form != SMOOTH:
                call = replace(call, work=write_export, arguments=(video, form, path, limits), processor_seconds=most)
            await engine.sandbox.run_async(call, who)

        named = {"name": _file_name(job, form), "media_type": MEDIA_TYPES.get(form, "video/mp4"), "num_bytes": num_bytes}
        return await send_generated_file(request, downloads, who, make, **named)

    return Route(f"/{_PREFIX}/{{job_id}}/{{form}}", serve, methods=["GET"])


def _file_name(job: Job, form: str) -> str:
    rate = f"-{SMOOTH_FPS}fps" if form == SMOOTH else ""
    return f"{job.request.preset}-{job.request.seed}{rate}{SUFFIXES.get(form, '.mp4')}"
