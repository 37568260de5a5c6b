"""Serves a project of the caller's as one file, made when it is asked for; and names projects in the page. Keeps no file."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backend.engine.engine import Engine
from backend.engine.projects import Project
from backend.errors import RequestError
from wan_ui.desk.media import PRIVATE
from wan_ui.desk.opening import asker
from wan_ui.door.access import Access
from wan_ui.door.limits import PROJECTS_SENT
from wan_ui.door.uploads import folder_for_parts, has_room

_PREFIX = "studio/project"


def project_url(project: Project) -> str:
    """The address of the project as a file."""
    return f"{_PREFIX}/{quote(project.id)}.zip"


def project_name(project: Project) -> str:
    """The name of that file: of the project's, what any disk takes."""
    plain = "".join(character if character.isalnum() or character in " -_" else "-" for character in project.name)
    return f"{plain.strip() or 'project'}.zip"


def project_route(engine: Engine, access: Access) -> Route:
    """The route that `project_url` points to; one project is written at a time, and few are sent. Answers 404 alike for somebody
    else's project and a missing one."""
    turns, under_way = asyncio.Semaphore(1), Counter[str]()

    async def serve(request: Request) -> Response:
        try:
            project = await asyncio.to_thread(engine.projects.find, request.path_params["project_id"], None)
        except RequestError:
            return _refused("Not found", 404)
        if not access.may_see(request.cookies, project.owner):
            return _refused("Not found", 404)
        if not has_room(engine.settings.data_dir):
            return _refused("The server's disk is almost full", 507)
        leave = _enter(under_way, request)
        if leave is None:
            return _refused("Other projects are being downloaded: try again when they are there", 429)
        response = None
        try:
            async with turns:
                response = await asyncio.to_thread(_written, engine, project, leave)
        finally:
            if not isinstance(response, _Sent):
                leave()
        return response

    return Route(f"/{_PREFIX}/{{project_id}}.zip", serve, methods=["GET"])


def _enter(under_way: Counter[str], request: Request) -> Callable[[], None] | None:
    """Counts this download; what ends that, or None where too many are under way."""
    who = asker(request)
    most = {"all": PROJECTS_SENT.in_all, f"visitor {who.owner}": PROJECTS_SENT.of_visitor}
    if who.address:
        most[f"address {who.address}"] = PROJECTS_SENT.of_address
    if any(under_way[one] >= allowed for one, allowed in most.items() if allowed is not None):
        return None
    under_way.update(most.keys())

    def leave() -> None:
        under_way.subtract(most.keys())
        for one in [one for one, count in under_way.items() if not count]:
            del under_way[one]

    return leave


class _Sent(FileResponse):
    """The project's file, which goes when it is sent or the caller goes."""

    def __init__(self, *arguments: Any, done: Callable[[], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


def _written(engine: Engine, project: Project, leave: Callable[[], None]) -> Response:
    folder = folder_for_parts()
    try:
        path = Path(folder.name) / "project.zip"
        engine.export_project(project, path)
    except BaseException as error:
        folder.cleanup()
        if isinstance(error, RequestError):
            return _refused(str(error), 422)
        if isinstance(error, OSError):
            return _refused("The server's disk is almost full", 507)
        raise

    def done() -> None:
        folder.cleanup()
        leave()

    return _Sent(path, media_type="application/zip", filename=project_name(project), headers=PRIVATE, done=done)


def _refused(words: str, status: int) -> Response:
    return PlainTextResponse(words, status_code=status, headers=PRIVATE)
