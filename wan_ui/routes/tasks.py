"""`/studio/tasks`: list the caller's exports, joined storyboards, comparisons and projects in progress, and stop them."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wan_ui.i18n.languages import texts_for
from wan_ui.services.media import PRIVATE, not_found_response
from wan_ui.services.sandbox_calls import requester_from_request
from wan_ui.services.studio_context import StudioContext

PATH = "/studio/tasks"


def tasks_routes(context: StudioContext) -> Sequence[Route]:
    """Return the routes. A caller sees and stops only tasks that were started with the same cookie."""

    async def show(request: Request) -> Response:
        texts = texts_for(request.headers)
        shown = []
        for task in context.engine.sandbox.tasks(requester_from_request(request).owner):
            percent = None if task.share is None else int(100 * task.share)
            state = texts.task_waiting if percent is None else f"{percent} %"
            shown.append({"id": task.id, "text": f"{getattr(texts, f'task_{task.kind}')} · {state}", "percent": percent})
        return JSONResponse({"tasks": shown, "stop": texts.stop}, headers=PRIVATE)

    async def stop(request: Request) -> Response:
        task_id, owner = request.path_params["task_id"], requester_from_request(request).owner
        is_stopped = await asyncio.to_thread(context.engine.sandbox.stop_task, task_id, owner)
        return JSONResponse({}, headers=PRIVATE) if is_stopped else not_found_response()

    return [Route(PATH, show, methods=["GET"]), Route(f"{PATH}/{{task_id}}/stop", stop, methods=["POST"])]
