"""Serve a project of the caller as one zip file. Each download creates the file again, and no file is stored."""

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
from wan_ui.services.media import not_found_response
from wan_ui.services.sandbox_calls import requester_from_request
from wan_ui.services.sending import Downloads, send_generated_file

_PREFIX = "studio/project"


def project_url(project: Project) -> str:
    return f"{_PREFIX}/{quote(project.id)}.zip"


def project_file_name(project: Project) -> str:
    """Return the zip file's name: the project's name without characters that some file systems refuse."""
    plain = "".join(character if character.isalnum() or character in " -_" else "-" for character in project.name)
    return f"{plain.strip() or 'project'}.zip"


def project_route(engine: Engine, access: Access, downloads: Downloads) -> Route:
    """Return the route that serves the addresses of `project_url`.

    It answers 404 for another visitor's project and for a missing project.
    """

    async def serve(request: Request) -> Response:
        try:
            project = await asyncio.to_thread(engine.projects.find, request.path_params["project_id"], None)
        except RequestError:
            return not_found_response()
        if not access.may_see(request.cookies, project.owner):
            return not_found_response()
        who = requester_from_request(request, access)

        async def make(path: Path) -> None:
            await engine.sandbox.run_steps_async(engine.export_project_steps(project, path), who)

        return await send_generated_file(
            request, downloads, who, make, name=project_file_name(project), media_type="application/zip"
        )

    return Route(f"/{_PREFIX}/{{project_id}}.zip", serve, methods=["GET"])
