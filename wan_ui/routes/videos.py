"""`/v1/videos` and `/v1/models`: the addresses, objects and errors that programs written for OpenAI's videos expect.

    client = openai.OpenAI(base_url="http://127.0.0.1:7860/v1", api_key=KEY)
    video = client.videos.create_and_poll(model="wan-tiny", prompt="a red circle moving right", seconds="1")
    client.videos.download_content(video.id).write_to_file("out.mp4")

A create call returns immediately, and programs poll. Only the key that created a video and the operator see it, all other callers
receive 404. Deleting also stops a video, because OpenAI's API has no other way. The studio adds `/events` and `/cancel`.
Source: openai-python 3.54.0, `resources/videos.py`, `resources/models.py` and their types.
"""

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

import gradio as gr
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.engine.job import Job, ListedJob
from backend.errors import Busy, DataFolderError, JobNotFound, QueueFull, RequestError, StudioError
from backend.schemas.events import VIDEO_FILE
from backend.schemas.settings import FOR_PROGRAMS
from presets import list_presets
from wan_ui.components.field_errors import error_sentence
from wan_ui.components.progress import StageView
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import V1, VIDEOS
from wan_ui.gateway.uploads import temporary_upload_folder
from wan_ui.routes.api import describe_progress, video_facts
from wan_ui.routes.changes import AT_ONCE
from wan_ui.routes.video_body import FINISHED, BodyReader, BodyTooLarge
from wan_ui.routes.video_values import (
    ALIASES,
    FIELDS,
    WEBHOOK,
    Adjustment,
    UnknownField,
    UnknownModel,
    parse_settings,
    parse_upscaling,
    store_adjustments,
    video_object,
)
from wan_ui.services.animate_request import request_from_settings
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import follow_job, list_view
from wan_ui.services.media import MEDIA_TYPES, find_file_below, make_poster
from wan_ui.services.sandbox_calls import cancel_on_disconnect
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import upscale_file_request

DEFAULT_PAGE, MOST_ON_PAGE = 20, 100
STOP_SECONDS = 30.0  # the longest wait of a delete call for a running video, which stops at the end of a step
_LOOK_SECONDS = 0.1
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_OWNER = "wan-tpu-studio"
_PARAMS = {*FIELDS, *FOR_PROGRAMS, "limit", "after", "order", "variant"}
_OURS = {"image": "input_reference", "preset": "model", "clip": "video"}  # field names in the engine's errors -> in the API

Endpoint = Callable[[Request, Caller], Awaitable[Response]]


class VideoMissing(StudioError):
    """The caller has no such video, or the video has no file to download."""


class StillStopping(StudioError):
    """The video is being stopped, but still runs."""


# The status and the code of each kind of error. The first kind that fits counts.
_STATUSES: Sequence[tuple[type[StudioError] | tuple[type[StudioError], ...], tuple[HTTPStatus, str | None]]] = (
    (BodyTooLarge, (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, None)),
    (UnknownModel, (HTTPStatus.BAD_REQUEST, "model_not_found")),
    (UnknownField, (HTTPStatus.BAD_REQUEST, "unknown_parameter")),
    (RequestError, (HTTPStatus.BAD_REQUEST, "invalid_value")),
    ((VideoMissing, JobNotFound), (HTTPStatus.NOT_FOUND, None)),
    (StillStopping, (HTTPStatus.CONFLICT, "still_stopping")),
    (QueueFull, (HTTPStatus.TOO_MANY_REQUESTS, None)),
    ((Busy, DataFolderError), (HTTPStatus.SERVICE_UNAVAILABLE, None)),
)


def videos_routes(context: StudioContext, aliases: Mapping[str, str] = ALIASES) -> list[Route]:
    """Return the routes. The gateway has already required a key or a visitor's cookie. For `aliases` see `ALIASES`."""
    videos = Videos(context, aliases)
    return [
        _route(context, VIDEOS, GET=videos.list_videos, POST=videos.create),
        _route(context, f"{VIDEOS}/{{video_id}}", GET=videos.retrieve, DELETE=videos.delete),
        _route(context, f"{VIDEOS}/{{video_id}}/content", GET=videos.download),
        _route(context, f"{VIDEOS}/{{video_id}}/events", GET=videos.follow),
        _route(context, f"{VIDEOS}/{{video_id}}/cancel", POST=videos.cancel),
        _route(context, f"{V1}/models", GET=videos.models),
        _route(context, f"{V1}/models/{{model}}", GET=videos.model),
    ]


def _route(context: StudioContext, path: str, **endpoints: Endpoint) -> Route:
    """Return a route whose errors all have OpenAI's format, also for unsupported methods."""

    async def answer(request: Request) -> Response:
        endpoint = endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            text = f"{request.method} is not offered here: use {' or '.join(endpoints)}."
            return refusal_response(request.scope, HTTPStatus.METHOD_NOT_ALLOWED, text, {"allow": ", ".join(endpoints)})
        try:
            return await endpoint(request, context.identify_caller(gr.Request(request)))
        except StudioError as error:
            # The status tells clients whether to try again.
            status, code = next((answer for kind, answer in _STATUSES if isinstance(error, kind)), (HTTPStatus.CONFLICT, None))
            headers = {"connection": "close"} if isinstance(error, BodyTooLarge) else None
            # The first word of the message is the field that caused the error, if the API has such a field.
            field = re.split(r"\W", error.what, maxsplit=1)[0]
            if not isinstance(error, UnknownField):
                field = _OURS.get(field, field)
                field = field if isinstance(error, RequestError) and field in _PARAMS else None
            return refusal_response(request.scope, status, error_sentence(error), headers, param=field, code=code)

    return Route(path, answer, methods=_METHODS)


class Videos:
    """The endpoints of `/v1/videos` and `/v1/models`. Each receives the request and the identified caller."""

    def __init__(self, context: StudioContext, aliases: Mapping[str, str] = ALIASES) -> None:
        self._context, self._aliases = context, aliases
        self._bodies, self._posters = BodyReader(), asyncio.Semaphore(1)

    async def create(self, request: Request, caller: Caller) -> Response:
        context = self._context
        with temporary_upload_folder() as folder:
            sent = await self._bodies.read(request, Path(folder))
            url, adjusted = sent.fields.get(WEBHOOK), list[Adjustment]()
            if url is not None:
                context.engine.webhooks.check(url, caller.owner)
            if FINISHED in sent.files:
                wanted = await upscale_file_request(context, caller, sent.files[FINISHED], *parse_upscaling(sent))
            else:
                default = ""
                if sent.fields.get("model") in (None, "", *self._aliases):
                    given = {**sent.fields, **sent.files, "image": sent.files.get("input_reference")}
                    default = await asyncio.to_thread(context.default_preset, caller, given)
                preset, values, adjusted = await asyncio.to_thread(parse_settings, sent, default, self._aliases)
                wanted = await request_from_settings(context, caller, preset, values)
            job = await cancel_on_disconnect(request, context.submit(wanted, caller))
            await asyncio.to_thread(self._store_call, job, adjusted, url)
            return JSONResponse(await asyncio.to_thread(self._video_object, job))

    async def list_videos(self, request: Request, caller: Caller) -> Response:
        """Return a page of the caller's videos, by default the newest first."""
        return JSONResponse(await asyncio.to_thread(self._list_page, dict(request.query_params), caller))

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        return JSONResponse(await asyncio.to_thread(lambda: self._video_object(self._find_own_job(request, caller))))

    async def download(self, request: Request, caller: Caller) -> Response:
        """Return the file of the finished video, or a small image of the video for `variant=thumbnail`."""
        job, variant = await asyncio.to_thread(self._find_own_job, request, caller), request.query_params.get("variant", "video")
        if variant not in ("video", "thumbnail"):
            raise RequestError(f"variant={variant[:20]!r}", "must be video or thumbnail", "leave it out for the video")
        if job.state != "finished":
            state = "stopped" if job.state == "cancelled" else job.state
            raise VideoMissing("this video", f"has nothing to download: it is {state}", "poll until it is completed")
        if variant == "video":
            path = await asyncio.to_thread(find_file_below, job.folder, VIDEO_FILE)
        else:
            path = await cancel_on_disconnect(request, self._poster(job))
        if path is None:
            raise VideoMissing("this video's file", "no longer exists", "generate it again with the same seed")
        name, headers = f"{request.path_params['video_id']}{path.suffix}", {"cache-control": "private, no-store"}
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], filename=name, headers=headers)

    async def follow(self, request: Request, caller: Caller) -> Response:
        job = await asyncio.to_thread(self._find_own_job, request, caller)
        return StreamingResponse(stream_events(self._context, job), media_type="text/event-stream", headers=AT_ONCE)

    async def cancel(self, request: Request, caller: Caller) -> Response:
        """Stop a queued or running video and keep it in the library."""
        job = await asyncio.to_thread(self._find_own_job, request, caller)
        await asyncio.to_thread(self._context.engine.queue.cancel, job.id)
        return JSONResponse(await asyncio.to_thread(lambda: self._video_object(self._find_own_job(request, caller))))

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Move a video to the bin. A queued or running video is stopped first."""
        engine, job = self._context.engine, await asyncio.to_thread(self._find_own_job, request, caller)
        if not job.has_ended:
            await asyncio.to_thread(engine.queue.cancel, job.id)
            until = time.monotonic() + STOP_SECONDS
            while not (await asyncio.to_thread(engine.jobs.find, job.id)).has_ended:
                if time.monotonic() > until:
                    raise StillStopping("this video", "is being stopped and cannot be deleted yet", "try again in a minute")
                await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.to_thread(self._delete_job, job)
        return JSONResponse({"id": job.id, "object": "video.deleted", "deleted": True})

    async def models(self, request: Request, caller: Caller) -> Response:
        """Return the presets that the caller can use on this server, without aliases."""
        names = await asyncio.to_thread(self._offered_presets, caller)
        return JSONResponse({"object": "list", "data": [_model_object(name) for name in names]})

    async def model(self, request: Request, caller: Caller) -> Response:
        """Return one of the presets that the caller can use, by its name or an alias."""
        name = request.path_params["model"]
        preset = self._aliases.get(name, name) or await asyncio.to_thread(self._context.default_preset, caller)
        if preset not in await asyncio.to_thread(self._offered_presets, caller):
            text = f"There is no model {name[:60]!r} here. GET {V1}/models lists the models."
            return refusal_response(request.scope, HTTPStatus.NOT_FOUND, text, param="model", code="model_not_found")
        return JSONResponse(_model_object(name))

    def _store_call(self, job: Job, adjusted: list[Adjustment], url: str | None) -> None:
        """Store the changed values and the webhook for the job. If that fails, stop the job. Raises: DataFolderError."""
        try:
            store_adjustments(job.folder, adjusted)
            if url is not None:
                self._context.engine.webhooks.add(job, url)
        except OSError as error:
            self._context.engine.queue.cancel(job.id)
            raise DataFolderError("the server cannot store", "the request", "ask the operator to free space") from error

    def _delete_job(self, job: Job) -> None:
        self._context.engine.library.delete(job.id)
        self._context.engine.count_change()  # open pages may still show the video, and reload now

    def _list_page(self, query: dict[str, str], caller: Caller) -> dict[str, object]:
        limit, after, order = query.get("limit", str(DEFAULT_PAGE)), query.get("after") or None, query.get("order", "desc")
        if not (re.fullmatch("[0-9]{1,3}", limit) and 1 <= int(limit) <= MOST_ON_PAGE):
            rule, fix = f"must be between 1 and {MOST_ON_PAGE}", f"leave it out for {DEFAULT_PAGE}"
            raise RequestError(f"limit={limit[:20]!r}", rule, fix)
        if order not in ("asc", "desc"):
            raise RequestError(f"order={order[:20]!r}", "must be asc or desc", "leave it out for the newest first")
        if after is not None and self._context.find_job(after, caller) is None:
            rule, fix = "must be the id of one of your videos", "use last_id of the previous page"
            raise RequestError(f"after={after[:60]!r}", rule, fix)
        library = self._context.engine.library
        jobs = library.page(caller.scope, after=after, most=int(limit) + 1, oldest_first=order == "asc")
        shown = jobs[: int(limit)]
        return {
            "object": "list",
            "data": [self._video_object(job) for job in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": len(jobs) > len(shown),
        }

    def _video_object(self, job: ListedJob) -> dict[str, object]:
        return video_object(job, list_view(self._context, job), self._context.engine.cleaner.limits)

    def _find_own_job(self, request: Request, caller: Caller) -> Job:
        """Return the caller's job. Raises: VideoMissing for other callers' jobs, deleted jobs and unknown ids."""
        job = self._context.find_job(request.path_params["video_id"], caller)
        if job is None or job.deleted is not None:
            raise VideoMissing(f"There is no video {request.path_params['video_id'][:60]!r}", "for you here", "check its id")
        return job

    async def _poster(self, job: Job) -> Path | None:
        async with self._posters:
            return await make_poster(job.folder, self._context.engine.sandbox)

    def _offered_presets(self, caller: Caller) -> list[str]:
        can_run = self._context.preset_filter(caller)
        return [preset.name for preset in list_presets() if can_run(preset)]


def _model_object(name: str) -> dict[str, object]:
    """Return a preset as OpenAI's `model` object. `created` is 0, because presets have no date."""
    return {"id": name, "object": "model", "created": 0, "owned_by": _OWNER}


async def stream_events(context: StudioContext, job: Job) -> AsyncIterator[str]:
    """Yield the video's progress as server-sent events until it ends, for `/v1/videos/{id}/events`.

    Each event has the fields of `describe_progress`, and `preview`: a new preview image as a data URL, null if it did not change.
    The last event also has `video`, the `video` object, and of a finished video `result`, its facts and its request. A program
    that reconnects receives the present state first. A comment every two seconds keeps the connection open.
    Source of the format: html.spec.whatwg.org, section 9.2.
    """
    shown, preview = "", None
    async for view in follow_job(context.engine, job.id):
        event = describe_progress(view) | {"preview": None}
        if not view.is_active:
            event |= await asyncio.to_thread(_describe_end, context, job.id, view)
        text = json.dumps(event)
        if (text, view.preview) == (shown, preview):
            yield ": still here\n\n"
            continue
        if view.preview != preview:
            event["preview"] = await asyncio.to_thread(_read_preview, job, view.preview)
        shown, preview = text, view.preview
        yield f"data: {json.dumps(event)}\n\n"


def _describe_end(context: StudioContext, job_id: str, view: StageView) -> dict[str, object]:
    end: dict[str, object] = {"video": video_object(context.engine.jobs.find(job_id), view, context.engine.cleaner.limits)}
    if view.phase == "finished" and (result := view.result):
        facts = {"has_sound": result.has_sound, "notes": result.notes, "request": result.request.for_sharing()}
        end["result"] = video_facts(job_id, result) | facts
    return end


def _read_preview(job: Job, name: str | None) -> str | None:
    """Return a preview image as a data URL. Return None if its file no longer exists."""
    path = find_file_below(job.folder, name) if name else None
    try:
        image = path.read_bytes() if path else b""
    except OSError:
        return None
    return f"data:{MEDIA_TYPES[path.suffix]};base64,{base64.b64encode(image).decode()}" if path else None
