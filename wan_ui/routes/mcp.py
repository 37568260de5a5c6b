"""`/mcp`: tools for assistants that use the Model Context Protocol over HTTP.

`generate_video` answers with the video if it is finished within `wait_seconds`, otherwise with the id of its job, for the other
tools. Gradio's own MCP server needs the `mcp` package below version 2 and an older pydantic. Therefore this module implements the
small part of the protocol that tools need: JSON-RPC in a POST. The answer is JSON, or a stream of events if the assistant
requests progress. There are no sessions: each call is independent.

If a password is set, a bearer token is required. Otherwise a caller without a key is a visitor. Requests from pages of other
origins are refused, as the protocol requires.
Source: modelcontextprotocol.io, specifications 2025-06-18 and 2025-11-25, "Streamable HTTP", "Tools" and "Progress".
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.engine.job import Job
from backend.errors import JobNotFound, RequestError, StudioError, shorten
from backend.schemas.prompts import has_surrogates
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FOR_PROGRAMS, SETTINGS
from backend.startup import project_name, project_version
from presets import list_presets
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import StageView
from wan_ui.gateway.uploads import temporary_upload_folder
from wan_ui.routes.api import GenerateArguments, describe_progress, finished_video, video_facts
from wan_ui.routes.changes import AT_ONCE
from wan_ui.routes.video_body import write_data_url
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import add_queue_position, follow_job, stage_view
from wan_ui.services.media import video_url
from wan_ui.services.studio_context import StudioContext

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
NAME = "mcp"  # the names of owners without a key start with it
GENERATE, STATUS, RESULT, CANCEL = TOOLS = ("generate_video", "video_status", "video_result", "cancel_video")
USUAL_WAIT, LONGEST_WAIT = 20.0, 600.0  # seconds; many assistants end a call after 30 or 60 seconds
_CANCEL_WAIT = 5.0  # seconds; most running videos finish their step in this time, and then stop
_STATES = {"queued": "queued", "finished": "completed", "failed": "failed", "cancelled": "cancelled"}
_PARSE_ERROR, _INVALID, _UNKNOWN, _BAD_ARGUMENTS = -32700, -32600, -32601, -32602


def mcp_route(context: StudioContext, *, is_open: bool) -> Route:
    """Return the route. `is_open` is true if the studio has no password."""
    access = context.access

    async def answer(request: Request) -> Response:
        origin = request.headers.get("origin")
        is_foreign = bool(origin) and urlsplit(origin).netloc != request.headers.get("host")
        if is_foreign or not (
            is_open or access.has_operator_key(request.headers) or access.find_program_key(request.headers) is not None
        ):
            return Response("Not allowed", 403 if is_open else 401)
        try:
            message = json.loads(await request.body(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return JSONResponse(_error_message(None, _PARSE_ERROR, "the body must be JSON"), 400)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return JSONResponse(_error_message(None, _INVALID, "one JSON-RPC 2.0 message is expected"), 400)
        if "id" not in message:
            return Response(status_code=202)  # a notification, which has no answer
        is_number = isinstance(message["id"], int) and not isinstance(message["id"], bool)
        if not is_number and (not isinstance(message["id"], str) or has_surrogates(message["id"])):
            return JSONResponse(_error_message(None, _INVALID, "id must be a text or a whole number"), 400)
        params = _dict_or_empty(message.get("params"))
        if message.get("method") != "tools/call" or params.get("name") not in TOOLS:
            caller = context.identify_program(request, NAME)
            return JSONResponse(await asyncio.to_thread(_reply, message, params, context, caller))
        token = _dict_or_empty(params.get("_meta")).get("progressToken")  # the assistant requests progress messages
        token = token if isinstance(token, str | int) else None
        if token is not None and "text/event-stream" in request.headers.get("accept", ""):
            messages = _run_tool(context, request, message, token, streams=True)
            events = (
                ": still here\n\n" if one is None else f"event: message\ndata: {json.dumps(one)}\n\n" async for one in messages
            )  # None becomes a comment, which keeps the connection open
            return StreamingResponse(events, media_type="text/event-stream", headers=AT_ONCE)
        last = None  # stays None if the assistant disconnects before the answer
        async with aclosing(_run_tool(context, request, message, token, streams=False)) as messages:
            async for last in messages:
                if last is None and await request.is_disconnected():
                    break
        return JSONResponse(last)

    return Route("/mcp", answer, methods=["POST"])


def _refuse_constant(constant: str) -> None:
    """Refuse NaN and Infinity, which JSON does not allow."""
    raise ValueError(constant)


def _dict_or_empty(given: object) -> dict[str, object]:
    return given if isinstance(given, dict) else {}


def _reply(message: dict[str, object], params: dict[str, object], context: StudioContext, caller: Caller) -> dict[str, object]:
    """Answer a message that does not call a known tool."""
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
            presets = [preset.name for preset in list_presets() if context.preset_filter(caller)(preset)]
            result = {"tools": describe_tools(presets, context.default_preset(caller))}
        case "tools/call":
            return _error_message(message["id"], _BAD_ARGUMENTS, f"the tools are {', '.join(TOOLS)}")
        case method:
            return _error_message(message["id"], _UNKNOWN, f"there is no method {str(method)[:60]!r}")
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def describe_tools(presets: list[str], default: str) -> list[dict[str, object]]:
    """Describe the tools to an assistant with these presets. `default` is the preset of a call without preset and image."""
    job = {"job_id": {"type": "string", "description": f"the job_id that {GENERATE} returned"}}
    until = f"answer after this time even if the video is not finished ({USUAL_WAIT:.0f})"
    wait = {"wait_seconds": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "description": until}}
    about_preset = f"the model; if left out {default}, or with an image the best model that takes one"
    settings = {name: SETTINGS[name].json_schema() for name in sorted(FOR_PROGRAMS)}
    generate = {
        "prompt": {"type": "string", "description": "what the video shows"},
        "preset": {"type": "string", "description": about_preset} | ({"enum": presets} if presets else {}),
        "image": {"type": "string", "description": "the first frame as a data URL: data:image/png;base64,..."},
        "settings": {"type": "object", "description": "values that replace the preset's defaults", "properties": settings},
    }
    about = (
        f"Generates a short video from a prompt. Returns its address, or after wait_seconds a job_id for {STATUS} and {RESULT}."
    )
    result = "Waits for a video and returns its address. Returns the progress if the video is not finished after wait_seconds."
    return [
        _describe_tool(GENERATE, about, "prompt", generate | wait),
        _describe_tool(STATUS, "Returns the status and the progress of a video.", "job_id", job, readOnlyHint=True),
        _describe_tool(RESULT, result, "job_id", job | wait, readOnlyHint=True),
        _describe_tool(CANCEL, "Stops a queued or running video.", "job_id", job, idempotentHint=True),
    ]


def _describe_tool(name: str, text: str, required: str, properties: dict[str, Any], **hints: bool) -> dict[str, object]:
    schema = {"type": "object", "required": [required], "additionalProperties": False, "properties": properties}
    return {"name": name, "description": text, "inputSchema": schema, "annotations": hints}


async def _run_tool(
    context: StudioContext, request: Request, message: dict[str, Any], token: str | int | None, *, streams: bool
) -> AsyncGenerator[dict[str, object] | None, None]:
    """Run a tool. Yield the answer as the last message.

    Before the answer, yield a message or None for each report of the job. If the assistant requests progress and the progress has
    increased, yield a progress message. Otherwise yield None. Errors of the engine are answers too, so that the assistant can
    correct its call. If the assistant disconnects from `generate_video` while the video is still queued, the job is cancelled.
    """
    reached, view, queued = -1.0, None, None
    name, arguments = message["params"]["name"], _dict_or_empty(message["params"].get("arguments"))
    try:
        caller = context.identify_program(request, NAME)
        until = time.monotonic() + _parse_wait(arguments, name, streams=streams)
        if name == GENERATE:
            with temporary_upload_folder() as folder:
                wanted = await asyncio.to_thread(_parse_request, context, arguments, caller, Path(folder) / "image")
                job = queued = await context.submit(wanted, caller)
        else:
            job = await asyncio.to_thread(_find_own_job, context, arguments, caller)
        if name == CANCEL:
            await asyncio.to_thread(context.engine.queue.cancel, job.id)
        if name == STATUS:
            view = await asyncio.to_thread(lambda: add_queue_position(stage_view(context, job), context.engine, job.id))
        else:
            async with aclosing(follow_job(context.engine, job.id)) as views:
                async for view in views:
                    if view.is_active and time.monotonic() >= until:
                        break
                    yield None if token is None or view.fraction <= reached else _progress_message(token, view)
                    reached = max(reached, view.fraction)
        facts = _describe_job(context, request, job, view, must_finish=name in (GENERATE, RESULT))
        result = {"content": [{"type": "text", "text": json.dumps(facts)}], "structuredContent": facts}
    except StudioError as error:
        result = {"content": [{"type": "text", "text": shorten_paths(str(error))}], "isError": True}
    except (asyncio.CancelledError, GeneratorExit):
        if queued is not None and context.engine.queue.position(queued.id) is not None:
            context.engine.queue.cancel(queued.id)
        raise
    yield {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _parse_wait(arguments: dict[str, object], name: object, *, streams: bool) -> float:
    """Return the seconds to wait for the video. An assistant that reads a stream waits until the end. Raises: RequestError."""
    if name == CANCEL:
        return _CANCEL_WAIT
    wait = arguments.get("wait_seconds")
    if wait is None:
        return math.inf if streams else USUAL_WAIT
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= LONGEST_WAIT:
        rule = f"must be between 0 and {LONGEST_WAIT:.0f}"
        raise RequestError(f"wait_seconds={shorten(wait)}", rule, f"leave it out for {USUAL_WAIT:.0f}")
    return float(wait)


def _find_own_job(context: StudioContext, arguments: dict[str, object], caller: Caller) -> Job:
    """Return the caller's job. Raises: JobNotFound for other callers' jobs, deleted jobs and unknown ids."""
    job = context.find_job(arguments.get("job_id"), caller)
    if job is None or job.deleted is not None:
        raise JobNotFound(
            f"job_id={shorten(arguments.get('job_id'))}", "must be one of your videos", f"use the job_id of {GENERATE}"
        )
    return job


def _describe_job(
    context: StudioContext, request: Request, job: Job, view: StageView | None, *, must_finish: bool
) -> dict[str, object]:
    """Return the address and the facts of a finished video, or the progress of any other video.

    Raises: StudioError if `must_finish` is true, and the video failed or was stopped.
    """
    assert view is not None, "following a job yields at least one view"
    if view.phase == "finished" or (must_finish and not view.is_active):
        facts = video_facts(job.id, finished_video(view))
        return {"status": "completed", "url": video_url(job.id, request, context.access)} | facts
    error = {"error": shorten_paths("; ".join(filter(None, (view.cause, view.fix))))} if view.phase == "failed" else {}
    return {"status": _STATES.get(view.phase, "in_progress"), "job_id": job.id} | describe_progress(view) | error


def _parse_request(context: StudioContext, arguments: dict[str, object], caller: Caller, path: Path) -> GenerationRequest:
    """Build the request from a tool's arguments. Write the first frame, if one is given, to `path`. Raises: StudioError."""
    image = None
    if arguments.get("image") not in (None, ""):
        write_data_url(arguments["image"], "image", "picture", path)
        image = gr.FileData(path=str(path)).model_dump()
    wanted = GenerateArguments.parse_arguments(
        arguments.get("prompt") or "", arguments.get("preset"), image, arguments.get("settings")
    )
    return wanted.to_request("" if wanted.preset else context.default_preset(caller, wanted.given))


def _progress_message(token: str | int, view: StageView) -> dict[str, object]:
    shown = describe_progress(view)
    params = {"progressToken": token, "progress": shown["fraction"], "total": 1, "message": shown["text"]}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def _error_message(message_id: object, code: int, text: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}
