"""`/mcp`: one tool, `generate_video`, for assistants that speak the Model Context Protocol over HTTP.

Gradio's own MCP server needs the `mcp` package below version 2 and a pydantic older than ours, so this is the small part of the
protocol that one tool needs: JSON-RPC in a POST, answered with JSON, or with a stream of events if the assistant asks for
progress. No session is kept. If visitors need a password, the operator's key is needed as a bearer token; otherwise a caller
with the key is the operator, and one without it a visitor. Requests from a foreign web page are refused (Origin), as the
protocol demands.
Source: modelcontextprotocol.io, specification 2025-06-18, "Streamable HTTP", "Tools" and "Progress".
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.contract.events import VideoResult
from backend.engine.engine import Engine, Job
from backend.errors import StudioError
from presets import list_presets
from wan_ui.desk.access import Access
from wan_ui.desk.followers import follow
from wan_ui.desk.media import video_url
from wan_ui.parts.progress import StageView, progress_words
from wan_ui.routes.api import OVERRIDES, Wanted, finished_video
from wan_ui.words.english import ENGLISH

VERSIONS = ("2025-06-18", "2025-03-26")
OWNER = "mcp"
MOST_WAITING = 20
_AT_ONCE = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass each event on
_PARSE_ERROR, _INVALID, _UNKNOWN, _BAD_ARGUMENTS = -32700, -32600, -32601, -32602


def mcp_route(engine: Engine, access: Access, *, is_open: bool) -> Route:
    """The endpoint."""

    async def answer(request: Request) -> Response:
        if not _is_allowed(request, access, is_open):
            return Response("Not allowed", 401 if not is_open else 403)
        try:
            message = json.loads(await request.body())
        except ValueError:
            return JSONResponse(_error(None, _PARSE_ERROR, "the body must be JSON"), 400)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return JSONResponse(_error(None, _INVALID, "one JSON-RPC 2.0 message is expected"), 400)
        if "id" not in message:
            return Response(status_code=202)  # a notification
        if _wants_video(message):
            messages = _make_video(engine, message, request, access)
            if _progress_token(message) is not None and "text/event-stream" in request.headers.get("accept", ""):
                return StreamingResponse(_as_events(messages), media_type="text/event-stream", headers=_AT_ONCE)
            return JSONResponse([answer async for answer in messages][-1])
        return JSONResponse(_answer(message))

    return Route("/mcp", answer, methods=["POST"])


def _is_allowed(request: Request, access: Access, is_open: bool) -> bool:
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        return False
    return is_open or _has_key(request, access)


def _has_key(request: Request, access: Access) -> bool:
    return access.is_key(request.headers.get("authorization", "").removeprefix("Bearer "))


def _params(message: dict[str, Any]) -> dict[str, Any]:
    return _object(message.get("params"))


def _object(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _wants_video(message: dict[str, Any]) -> bool:
    return message.get("method") == "tools/call" and _params(message).get("name") == "generate_video"


def _progress_token(message: dict[str, Any]) -> str | int | None:
    """The assistant's token for progress messages; None if it wants none."""
    token = _object(_params(message).get("_meta")).get("progressToken")
    return token if isinstance(token, str | int) else None


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """The answer to every message but a call of the tool."""
    params = _params(message)
    match message.get("method"):
        case "initialize":
            wanted = params.get("protocolVersion")
            result: dict[str, Any] = {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "wan-tpu-studio", "version": "1"},
            }
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": [tool()]}
        case "tools/call":
            return _error(message["id"], _BAD_ARGUMENTS, "the only tool is generate_video")
        case method:
            return _error(message["id"], _UNKNOWN, f"there is no method {str(method)[:60]!r}")
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def tool() -> dict[str, Any]:
    """The tool's description for assistants."""
    names = [preset.name for preset in list_presets()]
    settings = {"type": "object", "description": f"values in place of the preset's own: {', '.join(sorted(OVERRIDES))}"}
    return {
        "name": "generate_video",
        "description": "Makes a short video from a prompt and gives its address. Waits in the queue, so it may take minutes.",
        "inputSchema": {
            "type": "object",
            "required": ["prompt"],
            "additionalProperties": False,
            "properties": {
                "prompt": {"type": "string", "description": "what the video shows"},
                "preset": {"type": "string", "enum": names, "description": "the model; the first if left out"},
                "settings": settings,
            },
        },
    }


async def _make_video(
    engine: Engine, message: dict[str, Any], request: Request, access: Access
) -> AsyncIterator[dict[str, Any] | None]:
    """Runs the tool: yields its progress if the assistant gave a token, None while there is no news, and last the answer.

    An error is the tool's answer, too, in the engine's words, so that the assistant can correct its call.
    """
    token, told, view = _progress_token(message), -1.0, None
    is_operator = _has_key(request, access)
    try:
        job = await asyncio.to_thread(_submitted, engine, _object(_params(message).get("arguments")), is_operator)
        async for view in follow(engine, job.id):
            yield None if token is None or view.fraction <= told else _progress(token, view)
            told = max(told, view.fraction)
        result = _told(finished_video(view), job.id, video_url(job.id, request, access))
    except StudioError as error:
        result = {"content": [{"type": "text", "text": str(error)}], "isError": True}
    yield {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _submitted(engine: Engine, arguments: dict[str, Any], is_operator: bool) -> Job:
    """Queues it. Raises: StudioError."""
    wanted = Wanted(
        prompt=str(arguments.get("prompt") or ""),
        preset=str(arguments.get("preset") or ""),
        image=None,
        settings=_object(arguments.get("settings")),
    )
    return engine.submit(wanted.to_request(), OWNER, MOST_WAITING, may_download=is_operator)


def _progress(token: str | int, view: StageView) -> dict[str, Any]:
    words = " · ".join(part for part in progress_words(view, ENGLISH) if part)
    params = {"progressToken": token, "progress": round(view.fraction, 4), "total": 1, "message": words}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


async def _as_events(messages: AsyncIterator[dict[str, Any] | None]) -> AsyncIterator[str]:
    """Server-sent events; a comment if there is no news, so that the connection is not taken for dead."""
    async for message in messages:
        yield ": still here\n\n" if message is None else f"event: message\ndata: {json.dumps(message)}\n\n"


def _told(result: VideoResult, job_id: str, url: str) -> dict[str, Any]:
    facts = {
        "url": url,
        "job_id": job_id,
        "seed": result.request.seed,
        "width": result.width,
        "height": result.height,
        "num_frames": result.num_frames,
        "fps": result.fps,
        "seconds": result.seconds,
    }
    return {"content": [{"type": "text", "text": json.dumps(facts)}], "structuredContent": facts}


def _error(message_id: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}
