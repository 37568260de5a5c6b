"""List the characters of earlier storyboards in the caller's current project, with their images, for the next storyboard."""

import functools
import os
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wan_ui.services.caller import Caller
from wan_ui.services.shared_work import SharedWork
from wan_ui.services.studio_context import StudioContext

MOST_OFFERED = 12
PATH = "/studio/figures"
_HEADERS = {"Cache-Control": "private, no-store"}


def characters_route(context: StudioContext) -> Route:
    """Return the route that lists the characters in the caller's current project, or in videos without a project."""

    shared_lookups: SharedWork[str, list[dict[str, Any]]] = SharedWork()

    async def serve(request: Request) -> Response:
        caller = context.identify_caller(gr.Request(request))
        known = await shared_lookups.result(caller.owner, functools.partial(_list_characters, context, caller))
        return JSONResponse({"figures": known}, headers=_HEADERS)

    return Route(PATH, serve, methods=["GET"])


def _list_characters(context: StudioContext, caller: Caller) -> list[dict[str, object]]:
    """Return names and image addresses, without paths. `services.shots` accepts the addresses in place of uploads."""
    current = context.engine.projects.current(caller.owner)
    images = context.engine.library.characters(caller.owner, current, MOST_OFFERED)
    found = {name: Path(path) for name, path in images.items() if os.path.isfile(path)}
    return [{"name": name, "path": f"/studio/media/{path.parent.name}/{path.name}"} for name, path in found.items()]
