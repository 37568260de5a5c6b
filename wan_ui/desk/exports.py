"""Serves a job's video as another kind of file (webm, gif, animated webp, PNG frames in a zip) or smoother, made when it is asked
for, to those who may see the video. Keeps no file."""

import asyncio
import shutil
import tempfile
from html import escape
from pathlib import Path
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.contract.formats import BOUNDED, FORMATS, MEDIA_TYPES, SUFFIXES
from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.cage import EXPORT_SECONDS, Cage, For, Opening
from backend.media.export import write_export
from backend.media.smooth import write_smooth
from wan_ui.desk.media import PRIVATE, VIDEO, nothing, owned_job
from wan_ui.desk.opening import asker, unless_gone
from wan_ui.door.access import Access
from wan_ui.words.english import Texts

MEGABYTES = 8  # that a gif or a webp has at most: what chats take, and mail
SMOOTH, SMOOTH_FPS = "smooth", 60  # one more of the formats: an mp4 with so many frames a second
_PREFIX = "studio/export"


def export_url(job: Job, form: str) -> str:
    """The address of this job's video in this format."""
    return f"{_PREFIX}/{quote(job.id)}/{form}"


def export_menu(job: Job, texts: Texts) -> str:
    """The links to the video's other formats, behind a word that opens."""
    names = {"webm": texts.export_webm, "gif": texts.export_gif, "webp": texts.export_webp, "png": texts.export_png}
    smooth = {SMOOTH: texts.export_smooth} if job.request.fps < SMOOTH_FPS else {}
    links = "".join(
        f'<a href="{export_url(job, form)}" download="{escape(_name(job, form))}">'
        f"{escape(name.format(size=MEGABYTES, fps=SMOOTH_FPS))}</a>"
        for form, name in (smooth | names).items()
    )
    return f'<details class="menu"><summary>{escape(texts.export)}</summary><div>{links}</div></details>'


def export_route(engine: Engine, access: Access) -> Route:
    """The route that `export_url` points to. Answers 404 alike for somebody else's job, a missing one and an unknown format."""

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(owned_job, engine, request, access)
        form = request.path_params["form"]
        if job is None or job.deleted or form not in (*FORMATS, SMOOTH) or not (job.folder / VIDEO).is_file():
            return nothing()
        return await unless_gone(request, _made(engine.cage, job, form, asker(request)))

    return Route(f"/{_PREFIX}/{{job_id}}/{{form}}", serve, methods=["GET"])


async def _made(cage: Cage, job: Job, form: str, who: For) -> Response:
    folder = await asyncio.to_thread(_new_folder)
    try:
        path = folder / f"video{_suffix(form)}"
        await cage.opened(_work(job.folder / VIDEO, form, path), who)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, RequestError):
            return PlainTextResponse(str(error), status_code=422, headers=PRIVATE)
        if isinstance(error, StudioError | OSError):
            return nothing()
        raise
    remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    media_type = MEDIA_TYPES.get(form, "video/mp4")
    return FileResponse(path, media_type=media_type, filename=_name(job, form), headers=PRIVATE, background=remove)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp())


def _work(video: Path, form: str, path: Path) -> Opening:
    if form == SMOOTH:
        return Opening(work=write_smooth, arguments=(video, SMOOTH_FPS, path), seconds=EXPORT_SECONDS)
    bound = int(MEGABYTES * 1_000_000) if form in BOUNDED else None
    return Opening(work=write_export, arguments=(video, form, path, bound), seconds=EXPORT_SECONDS)


def _suffix(form: str) -> str:
    return SUFFIXES.get(form, ".mp4")


def _name(job: Job, form: str) -> str:
    rate = f"-{SMOOTH_FPS}fps" if form == SMOOTH else ""
    return f"{job.request.preset}-{job.request.seed}{rate}{_suffix(form)}"
