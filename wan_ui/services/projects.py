"""Serves a project of the caller's as one file, made when it is asked for; and names projects in the page. Keeps no file."""

import asyncio
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.projects import Project
from backend.errors import RequestError
from wan_ui.gateway.access import Access
from wan_ui.services.media import nothing
from wan_ui.services.sandbox_calls import asker
from wan_ui.services.sending import Downloads, send_made

_PREFIX = "studio/project"


def project_url(project: Project) -> str:
    """The address of the project as a file."""
    return f"{_PREFIX}/{quote(project.id)}.zip"


def project_name(project: Project) -> str:
    """The name of that file: of the project's, what any disk takes."""
    plain = "".join(character if character.isalnum() or character in " -_" else "-" for character in project.name)
    return f"{plain.strip() or 'project'}.zip"


def project_route(engine: Engine, access: Access, downloads: Downloads) -> Route:
    """The route that `project_url` points to. Answers 404 alike for somebody else's project and a missing one."""

    async def serve(request: Request) -> Response:
        try:
            project = await asyncio.to_thread(engine.projects.find, request.path_params["project_id"], None)
        except RequestError:
            return nothing()
        if not access.may_see(request.cookies, project.owner):
            return nothing()
        who = asker(request, access)

        async def make(path: Path) -> None:
            await engine.sandbox.run_steps_async(engine.export_project_steps(project, path), who)

        return await send_made(request, downloads, who, make, name=project_name(project), media_type="application/zip")

    return Route(f"/{_PREFIX}/{{project_id}}.zip", serve, methods=["GET"])
