"""Serves a job's video as another kind of file (webm, gif, animated webp, PNG frames in a zip), made when it is asked for, to
those who may see the video. Keeps no file."""

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

from backend.contract.formats import BOUNDED, FORMATS, MEDIA_TYPES, SUFFIXES, Format
from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.cage import EXPORT_SECONDS, Cage, For, Opening
from backend.media.export import write_export
from wan_ui.desk.media import VIDEO, owned_job
from wan_ui.desk.opening import asker, unless_gone
from wan_ui.door.access import Access
from wan_ui.words.english import Texts

MEGABYTES = 8  # that a gif or a webp has at most: what chats take, and mail
_PREFIX = "studio/export"
_HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}


def export_url(job: Job, form: Format) -> str:
    """The address of this job's video in this format."""
    return f"{_PREFIX}/{quote(job.id)}/{form}"


def export_menu(job: Job, texts: Texts) -> str:
    """The links to the video's other formats, behind a word that opens."""
    names = {"webm": texts.export_webm, "gif": texts.export_gif, "webp": texts.export_webp, "png": texts.export_png}
    words = {form: escape(name.format(size=MEGABYTES)) for form, name in names.items()}
    links = "".join(
        f'<a href="{export_url(job, form)}" download="{escape(_name(job, form))}">{words[form]}</a>' for form in FORMATS
    )
    return f'<details class="menu"><summary>{escape(texts.export)}</summary><div>{links}</div></details>'


def export_route(engine: Engine, access: Access) -> Route:
    """The route that `export_url` points to. Answers 404 alike for somebody else's job, a missing one and an unknown format."""

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(owned_job, engine, request, access)
        form = request.path_params["form"]
        if job is None or job.deleted or form not in FORMATS or not (job.folder / VIDEO).is_file():
            return _nothing()
        return await unless_gone(request, _made(engine.cage, job, form, asker(request)))

    return Route(f"/{_PREFIX}/{{job_id}}/{{form}}", serve, methods=["GET"])


async def _made(cage: Cage, job: Job, form: Format, who: For) -> Response:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp))
    path = folder / f"video{SUFFIXES[form]}"
    bound = MEGABYTES * 1_000_000 if form in BOUNDED else None
    try:
        work = Opening(work=write_export, arguments=(job.folder / VIDEO, form, path, bound), seconds=EXPORT_SECONDS)
        await cage.opened(work, who)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, RequestError):
            return PlainTextResponse(str(error), status_code=422, headers=_HEADERS)
        if isinstance(error, StudioError | OSError):
            return _nothing()
        raise
    remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(path, media_type=MEDIA_TYPES[form], filename=_name(job, form), headers=_HEADERS, background=remove)


def _name(job: Job, form: Format) -> str:
    return f"{job.request.preset}-{job.request.seed}{SUFFIXES[form]}"


def _nothing() -> Response:
    return PlainTextResponse("Not found", status_code=404)
