"""`/mcp`: one tool, `generate_video`, for assistants that use the Model Context Protocol over HTTP.

Gradio's own MCP server needs the `mcp` package below version 2 and an older pydantic than the studio. Therefore this module
implements the small part of the protocol that one tool needs: JSON-RPC in a POST. The answer is JSON, or a stream of events if
the assistant requests progress. Calls have no session.

If a password is set, a bearer token is required: the operator's key or a program's key. Otherwise a caller without a key is a
visitor. Requests from pages of other origins are refused, as the protocol requires.
Source: modelcontextprotocol.io, specification 2025-06-18, "Streamable HTTP", "Tools" and "Progress".
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.errors import StudioError
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FOR_PROGRAMS, SETTINGS
from backend.startup import project_name, project_version
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import StageView, progress_texts
from wan_ui.gateway.access import Access
from wan_ui.i18n.english import ENGLISH
from wan_ui.routes.api import GenerateArguments, finished_video, video_facts
from wan_ui.routes.changes import AT_ONCE
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import follow_job
from wan_ui.services.media import video_url
from wan_ui.services.studio_context import StudioContext

VERSIONS = ("2025-06-18", "2025-03-26")
NAME = "mcp"  # the prefix of the owner names of callers without a key
_PARSE_ERROR, _INVALID, _UNKNOWN, _BAD_ARGUMENTS = -32700, -32600, -32601, -32602


def mcp_route(context: StudioContext, *, is_open: bool) -> Route:
    """Return the route of `/mcp`. `is_open` is true if the studio has no password."""
    access = context.access

    async def answer(request: Request) -> Response:
        if not _is_allowed(request, access, is_open):
            return Response("Not allowed", 401 if not is_open else 403)
        try:
            message = json.loads(await request.body(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return JSONResponse(_error_message(None, _PARSE_ERROR, "the body must be JSON"), 400)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return JSONResponse(_error_message(None, _INVALID, "one JSON-RPC 2.0 message is expected"), 400)
        if "id" in message and not _is_id(message["id"]):
            return JSONResponse(_error_message(None, _INVALID, "id must be a text or a whole number"), 400)
        if "id" not in message:
            return Response(status_code=202)  # a notification, which has no answer
        if message.get("method") == "tools/call" and _params(message).get("name") == "generate_video":
            messages = _run_tool(context, message, request)
            if _progress_token(message) is not None and "text/event-stream" in request.headers.get("accept", ""):
                return StreamingResponse(_as_events(messages), media_type="text/event-stream", headers=AT_ONCE)
            return JSONResponse(await _last_message(messages, request))
        return JSONResponse(_reply(message, context.preset_names(context.identify_program(request, NAME))))

    return Route("/mcp", answer, methods=["POST"])


def _is_allowed(request: Request, access: Access, is_open: bool) -> bool:
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        return False
    return is_open or access.has_operator_key(request.headers) or access.find_program_key(request.headers) is not None


def _refuse_constant(constant: str) -> None:
    """Refuse NaN and Infinity, which JSON does not allow."""
    raise ValueError(constant)


def _is_id(value: object) -> bool:
    """Return whether the value can be a message id: an integer, or text that can be encoded."""
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return isinstance(value, int) and not isinstance(value, bool)


async def _last_message(messages: AsyncGenerator[dict[str, object] | None, None], request: Request) -> dict[str, object] | None:
    """Return the last message, which is the answer. Return None if the assistant disconnects."""
    message = None
    async with aclosing(messages):
        async for message in messages:
            if message is None and await request.is_disconnected():
                break
    return message


def _params(message: dict[str, object]) -> dict[str, object]:
    return _dict_or_empty(message.get("params"))


def _dict_or_empty(given: object) -> dict[str, object]:
    return given if isinstance(given, dict) else {}


def _progress_token(message: dict[str, object]) -> str | int | None:
    """Return the assistant's token for progress messages, None without one."""
    token = _dict_or_empty(_params(message).get("_meta")).get("progressToken")
    return token if isinstance(token, str | int) else None


def _reply(message: dict[str, object], presets: list[str]) -> dict[str, object]:
    """Return the answer to a message that does not call the tool. `presets` are the names that the caller may use."""
    params = _params(message)
    match message.get("method"):
        case "initialize":
            wanted = params.get("protocolVersion")
            result: dict[str, Any] = {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": project_name(), "version": project_version()},
            }
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": [describe_tool(presets)]}
        case "tools/call":
            return _error_message(message["id"], _BAD_ARGUMENTS, "the only tool is generate_video")
        case method:
            return _error_message(message["id"], _UNKNOWN, f"there is no method {str(method)[:60]!r}")
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def describe_tool(presets: list[str]) -> dict[str, object]:
    """Return the tool's description for assistants who may use these presets."""
    return {
        "name": "generate_video",
        "description": "Generates a short video from a prompt and returns its address. Waits in a queue, so it may take minutes.",
        "inputSchema": {
            "type": "object",
            "required": ["prompt"],
            "additionalProperties": False,
            "properties": {
                "prompt": {"type": "string", "description": "what the video shows"},
                "preset": {"type": "string", "enum": presets, "description": "the model; the first if left out"},
                "settings": {
                    "type": "object",
                    "description": "values that replace the preset's defaults",
                    "properties": {name: SETTINGS[name].json_schema() for name in sorted(FOR_PROGRAMS)},
                },
            },
        },
    }


async def _run_tool(
    context: StudioContext, message: dict[str, object], request: Request
) -> AsyncGenerator[dict[str, object] | None, None]:
    """Run the tool. Yield the answer as the last message.

    Before the answer, yield progress messages if the assistant sent a token, and None while the progress does not change.

    Errors of the engine are answers too, so that the assistant can correct its call. If the assistant disconnects while its
    video is queued, the job is cancelled.
    """
    token, reached, view, job = _progress_token(message), -1.0, None, None
    try:
        caller = context.identify_program(request, NAME)
        wanted = await asyncio.to_thread(_parse_request, context, _dict_or_empty(_params(message).get("arguments")), caller)
        job = await context.submit(wanted, caller)
        async for view in follow_job(context.engine, job.id):
            yield None if token is None or view.fraction <= reached else _progress_message(token, view)
            reached = max(reached, view.fraction)
        facts = {"url": video_url(job.id, request, context.access)} | video_facts(job.id, finished_video(view))
        result = {"content": [{"type": "text", "text": json.dumps(facts)}], "structuredContent": facts}
    except StudioError as error:
        result = {"content": [{"type": "text", "text": shorten_paths(str(error))}], "isError": True}
    except (asyncio.CancelledError, GeneratorExit):
        if job is not None and context.engine.queue.position(job.id) is not None:
            context.engine.queue.cancel(job.id)
        raise
    yield {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _parse_request(context: StudioContext, arguments: dict[str, object], caller: Caller) -> GenerationRequest:
    """Build the request. Raises: StudioError."""
    wanted = GenerateArguments.parse_arguments(
        arguments.get("prompt") or "", arguments.get("preset"), None, arguments.get("settings")
    )
    return wanted.to_request(context.preset_names(caller)[0])


def _progress_message(token: str | int, view: StageView) -> dict[str, object]:
    words = " · ".join(part for part in progress_texts(view, ENGLISH) if part)
    params = {"progressToken": token, "progress": round(view.fraction, 4), "total": 1, "message": words}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


async def _as_events(messages: AsyncIterator[dict[str, object] | None]) -> AsyncIterator[str]:
    """Yield server-sent events. None becomes a comment, which keeps the connection open."""
    async for message in messages:
        yield ": still here\n\n" if message is None else f"event: message\ndata: {json.dumps(message)}\n\n"


def _error_message(message_id: object, code: int, text: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}
