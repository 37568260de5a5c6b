"""`/mcp`: one tool, `generate_video`, for assistants that speak the Model Context Protocol over HTTP.

Gradio's own MCP server needs the `mcp` package below version 2 and a pydantic older than ours, so this is the small part of the
protocol that one tool needs: JSON-RPC in a POST, answered with JSON. No session is kept. Where visitors need a password, the
operator's key is needed as a bearer token. Requests that a foreign web page makes are refused (Origin), as the protocol demands.
Source: modelcontextprotocol.io, specification 2025-06-18, "Streamable HTTP" and "Tools".
"""

import asyncio
import json
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backend.engine import Engine
from backend.errors import StudioError
from backend.events import Event, Finished, VideoResult
from presets import list_presets
from wan_ui.access import Access
from wan_ui.api import OVERRIDES, Wanted
from wan_ui.uploads import to_cache

VERSIONS = ("2025-06-18", "2025-03-26")
OWNER = "mcp"
MOST_WAITING = 20
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
        return JSONResponse(await _answer(engine, message, str(request.base_url)))

    return Route("/mcp", answer, methods=["POST"])


def _is_allowed(request: Request, access: Access, is_open: bool) -> bool:
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        return False
    return is_open or access.is_key(request.headers.get("authorization", "").removeprefix("Bearer "))


async def _answer(engine: Engine, message: dict[str, Any], address: str) -> dict[str, Any]:
    given = message.get("params")
    params: dict[str, Any] = given if isinstance(given, dict) else {}
    match message.get("method"):
        case "initialize":
            wanted = params.get("protocolVersion")
            result: dict[str, Any] = {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0], "capabilities": {"tools": {}},
                "serverInfo": {"name": "wan-tpu-studio", "version": "1"},
            }  # fmt: skip
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": [tool()]}
        case "tools/call" if params.get("name") == "generate_video":
            result = await asyncio.to_thread(_call, engine, params.get("arguments"), address)
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
            "type": "object", "required": ["prompt"], "additionalProperties": False,
            "properties": {
                "prompt": {"type": "string", "description": "what the video shows"},
                "preset": {"type": "string", "enum": names, "description": "the model; the first if left out"},
                "settings": settings,
            },
        },
    }  # fmt: skip


def _call(engine: Engine, given: Any, address: str) -> dict[str, Any]:
    """Runs the tool. What goes wrong is the tool's answer, in the engine's words, so that the assistant can correct itself."""
    arguments: dict[str, Any] = given if isinstance(given, dict) else {}
    settings = arguments.get("settings")
    try:
        wanted = Wanted(prompt=str(arguments.get("prompt") or ""), preset=str(arguments.get("preset") or ""), image=None,
                        settings=settings if isinstance(settings, dict) else {})  # fmt: skip
        job = engine.submit(wanted.to_request(), OWNER, MOST_WAITING)
        last: Event | None = None
        for _, last in engine.events(job.id):  # noqa: B007 - the last one counts
            pass
        if not isinstance(last, Finished):
            raise StudioError(getattr(last, "cause", "the video was stopped"), fix=getattr(last, "fix", ""))
    except StudioError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    return _told(last.result, job.id, address)


def _told(result: VideoResult, job_id: str, address: str) -> dict[str, Any]:
    url = f"{address}gradio_api/file={quote(to_cache(result.path))}"
    facts = {"url": url, "job_id": job_id, "seed": result.request.seed, "width": result.width, "height": result.height,
             "num_frames": result.num_frames, "fps": result.fps, "seconds": result.seconds}  # fmt: skip
    return {"content": [{"type": "text", "text": json.dumps(facts)}], "structuredContent": facts}


def _error(message_id: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}
