"""Says which figures the storyboards in the caller's current project have had, with their pictures, for the next one there."""

import functools
import os
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wan_ui.services.caller import Caller
from wan_ui.services.shared_work import SharedWork
from wan_ui.services.shots import address_of_picture
from wan_ui.services.studio_context import StudioContext

MOST_OFFERED = 12
PATH = "/studio/figures"
_HEADERS = {"Cache-Control": "private, no-store"}


def figures_route(context: StudioContext) -> Route:
    """The endpoint: nobody's figures but the caller's own, of their current project, or of what is in none."""

    looks: SharedWork[str, list[dict[str, Any]]] = SharedWork()

    async def serve(request: Request) -> Response:
        caller = context.caller(gr.Request(request))
        known = await looks.result(caller.owner, functools.partial(_known, context, caller))
        return JSONResponse({"figures": known}, headers=_HEADERS)

    return Route(PATH, serve, methods=["GET"])


def _known(context: StudioContext, caller: Caller) -> list[dict[str, Any]]:
    """Names, and the pictures' addresses, which `context.shots` takes in place of uploads."""
    current = context.engine.projects.current(caller.owner)
    found = context.engine.library.figures(caller.owner, current, MOST_OFFERED)
    return [{"name": name, "path": address_of_picture(path)} for name, path in found.items() if os.path.isfile(path)]
