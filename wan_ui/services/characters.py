"""Says which figures the storyboards in the caller's current project have had, with their pictures, for the next one there."""

import functools
import os
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wan_ui.services.caller import Visit
from wan_ui.services.shared_work import SharedWork
from wan_ui.services.shots import address_of_picture
from wan_ui.services.studio_context import Desk

MOST_OFFERED = 12
PATH = "/studio/figures"
_HEADERS = {"Cache-Control": "private, no-store"}


def figures_route(desk: Desk) -> Route:
    """The endpoint: nobody's figures but the caller's own, of their current project, or of what is in none."""

    looks: SharedWork[str, list[dict[str, Any]]] = SharedWork()

    async def serve(request: Request) -> Response:
        visit = desk.visit(gr.Request(request))
        known = await looks.result(visit.owner, functools.partial(_known, desk, visit))
        return JSONResponse({"figures": known}, headers=_HEADERS)

    return Route(PATH, serve, methods=["GET"])


def _known(desk: Desk, visit: Visit) -> list[dict[str, Any]]:
    """Names, and the pictures' addresses, which `desk.shots` takes in place of uploads."""
    current = desk.engine.projects.current(visit.owner)
    found = desk.engine.library.figures(visit.owner, current, MOST_OFFERED)
    return [{"name": name, "path": address_of_picture(path)} for name, path in found.items() if os.path.isfile(path)]
