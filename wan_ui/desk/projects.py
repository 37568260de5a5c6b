"""Serves a project of the caller's as one file, made when it is asked for; and names projects in the page. Keeps no file."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.projects import Project
from backend.errors import RequestError
from wan_ui.door.access import Access
from wan_ui.door.uploads import has_room

_PREFIX = "studio/project"
_HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}


def project_url(project: Project) -> str:
    """The address of the project as a file."""
    return f"{_PREFIX}/{quote(project.id)}.zip"


def project_name(project: Project) -> str:
    """The name of that file: of the project's, what any disk takes."""
    plain = "".join(character if character.isalnum() or character in " -_" else "-" for character in project.name)
    return f"{plain.strip() or 'project'}.zip"


def project_route(engine: Engine, access: Access) -> Route:
    """The route that `project_url` points to; one project is written at a time. Answers 404 alike for somebody else's project and
    a missing one."""
    turns = asyncio.Semaphore(1)

    async def serve(request: Request) -> Response:
        try:
            project = await asyncio.to_thread(engine.projects.find, request.path_params["project_id"], None)
        except RequestError:
            return _refused("Not found", 404)
        if not access.may_see(request.cookies, project.owner):
            return _refused("Not found", 404)
        if not has_room(engine.settings.data_dir):
            return _refused("The server's disk is almost full", 507)
        async with turns:
            return await asyncio.to_thread(_written, engine, project)

    return Route(f"/{_PREFIX}/{{project_id}}.zip", serve, methods=["GET"])


def _written(engine: Engine, project: Project) -> Response:
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "project.zip"
        engine.export_project(project, path)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, RequestError):
            return _refused(str(error), 422)
        if isinstance(error, OSError):
            return _refused("The server's disk is almost full", 507)
        raise
    remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(path, media_type="application/zip", filename=project_name(project), headers=_HEADERS, background=remove)


def _refused(words: str, status: int) -> Response:
    return PlainTextResponse(words, status_code=status, headers=_HEADERS)
