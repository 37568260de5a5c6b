"""`/studio/tasks`: list the caller's running and waiting tasks with their progress, and stop them.

A task exports a video, joins a storyboard's shots, writes the file of a comparison, or exports or imports a project.
"""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backend.media.sandbox import Task
from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import texts_for
from wan_ui.services.media import PRIVATE, not_found_response
from wan_ui.services.sandbox_calls import requester_from_request
from wan_ui.services.studio_context import StudioContext

PATH = "/studio/tasks"


def tasks_routes(context: StudioContext) -> Sequence[Route]:
    """Return the routes. A caller sees and stops only tasks that were started with the same cookie."""

    async def show(request: Request) -> Response:
        texts = texts_for(request.headers)
        tasks = [_describe_task(task, texts) for task in context.engine.sandbox.tasks(requester_from_request(request).owner)]
        return JSONResponse({"tasks": tasks, "stop": texts.stop}, headers=PRIVATE)

    async def stop(request: Request) -> Response:
        task_id, owner = request.path_params["task_id"], requester_from_request(request).owner
        is_stopped = await asyncio.to_thread(context.engine.sandbox.stop_task, task_id, owner)
        return JSONResponse({}, headers=PRIVATE) if is_stopped else not_found_response()

    return [Route(PATH, show, methods=["GET"]), Route(f"{PATH}/{{task_id}}/stop", stop, methods=["POST"])]


def _describe_task(task: Task, texts: Texts) -> dict[str, str | int | None]:
    name = getattr(texts, f"task_{task.kind}")
    if task.share is None:
        return {"id": task.id, "text": f"{name} · {texts.task_waiting}", "percent": None}
    percent = int(100 * task.share)
    return {"id": task.id, "text": f"{name} · {percent} %", "percent": percent}
