"""`/v1/videos` and `/v1/models`: the addresses, objects and errors that programs written for OpenAI's videos expect.

    client = openai.OpenAI(base_url="http://127.0.0.1:7860/v1", api_key=KEY)
    video = client.videos.create_and_poll(model="wan-tiny", prompt="a red circle moving right", seconds="1")
    client.videos.download_content(video.id).write_to_file("out.mp4")

A create call returns immediately. The video waits in the queue of all videos, and programs poll until it is completed. Only the
key that created a video and the operator see it, all other callers receive 404. Deleting also stops a queued or running video,
because OpenAI's API has no other way to stop a video. The studio adds `/events` and `/cancel`.
Source: openai-python 3.54.0, `resources/videos.py`, `resources/models.py` and their types.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path

import gradio as gr
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.engine.job import Job, ListedJob
from backend.errors import Busy, DataFolderError, JobNotFound, QueueFull, RequestError, StudioError
from backend.schemas.events import VIDEO_FILE
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FOR_PROGRAMS
from presets import Preset, list_presets
from wan_ui.components.field_errors import error_sentence
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import V1, VIDEOS
from wan_ui.gateway.uploads import temporary_upload_folder
from wan_ui.routes.changes import AT_ONCE
from wan_ui.routes.video_body import FINISHED, BodyReader, BodyTooLarge, VideoBody
from wan_ui.routes.video_events import stream_events
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
from wan_ui.services.job_followers import list_view
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


def videos_routes(context: StudioContext, aliases: Mapping[str, str] = ALIASES) -> list[Route]:
    """Return the routes. The gateway has already required a key or a visitor's cookie.

    `aliases` are further names of models, with their presets. See `wan_ui.routes.video_values.ALIASES`.
    """
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
    """Return a route with an endpoint for each method. All errors have OpenAI's format, also for unsupported methods."""

    async def answer(request: Request) -> Response:
        endpoint = endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            text = f"{request.method} is not offered here: use {' or '.join(endpoints)}."
            return refusal_response(request.scope, HTTPStatus.METHOD_NOT_ALLOWED, text, {"allow": ", ".join(endpoints)})
        try:
            return await endpoint(request, context.identify_caller(gr.Request(request)))
        except StudioError as error:
            return _error_response(request, error)

    return Route(path, answer, methods=_METHODS)


class Videos:
    """The endpoints of `/v1/videos` and `/v1/models`. Each receives the request and the identified caller."""

    def __init__(self, context: StudioContext, aliases: Mapping[str, str] = ALIASES) -> None:
        self._context, self._aliases = context, aliases
        self._bodies, self._posters = BodyReader(), asyncio.Semaphore(1)

    async def create(self, request: Request, caller: Caller) -> Response:
        """Queue a video."""
        with temporary_upload_folder() as folder:
            sent = await self._bodies.read(request, Path(folder))
            url = sent.fields.get(WEBHOOK)
            if url is not None:
                self._context.engine.webhooks.check(url, caller.owner)
            wanted, adjusted = await self._build_request(sent, caller)
            job = await cancel_on_disconnect(request, self._context.submit(wanted, caller))
            await asyncio.to_thread(self._store_call, job, adjusted, url)
            return JSONResponse(await asyncio.to_thread(self._video_object, job))

    async def _build_request(self, sent: VideoBody, caller: Caller) -> tuple[GenerationRequest, list[Adjustment]]:
        if FINISHED in sent.files:
            return await upscale_file_request(self._context, caller, sent.files[FINISHED], *parse_upscaling(sent)), []
        preset, values, adjusted = await asyncio.to_thread(self._parse_settings, sent, caller)
        return await request_from_settings(self._context, caller, preset, values), adjusted

    def _parse_settings(self, sent: VideoBody, caller: Caller) -> tuple[Preset, dict[str, object], list[Adjustment]]:
        needs_default = sent.fields.get("model") in (None, "", *self._aliases)
        given = {**sent.fields, **sent.files, "image": sent.files.get("input_reference")}
        default = self._context.default_preset(caller, given) if needs_default else ""
        return parse_settings(sent, default, self._aliases)

    async def list_videos(self, request: Request, caller: Caller) -> Response:
        """Return a page of the caller's videos, by default the newest first."""
        return JSONResponse(await asyncio.to_thread(self._list_page, dict(request.query_params), caller))

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        """Return a video's status and progress."""
        return JSONResponse(await asyncio.to_thread(lambda: self._video_object(self._find_own_job(request, caller))))

    async def download(self, request: Request, caller: Caller) -> Response:
        """Return the file of the finished video, or a small image of the video for `variant=thumbnail`."""
        path = await self._find_file(request, caller)
        name, headers = f"{request.path_params['video_id']}{path.suffix}", {"cache-control": "private, no-store"}
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], filename=name, headers=headers)

    async def follow(self, request: Request, caller: Caller) -> Response:
        """Return the video's progress as server-sent events, until it ends. See `wan_ui.routes.video_events`."""
        job = await asyncio.to_thread(self._find_own_job, request, caller)
        return StreamingResponse(stream_events(self._context, job), media_type="text/event-stream", headers=AT_ONCE)

    async def cancel(self, request: Request, caller: Caller) -> Response:
        """Stop a queued or running video and keep it in the library. A running video stops at the end of a step."""
        job = await asyncio.to_thread(self._find_own_job, request, caller)
        await asyncio.to_thread(self._context.engine.queue.cancel, job.id)
        return JSONResponse(await asyncio.to_thread(lambda: self._video_object(self._find_own_job(request, caller))))

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Move a video to the bin. A queued or running video is stopped first."""
        job = await asyncio.to_thread(self._find_own_job, request, caller)
        if not job.has_ended:
            await self._stop(job)
        await asyncio.to_thread(self._delete_job, job)
        return JSONResponse({"id": job.id, "object": "video.deleted", "deleted": True})

    async def models(self, request: Request, caller: Caller) -> Response:
        """Return the presets that the caller can use on this server, without aliases."""
        names = await asyncio.to_thread(self._offered_presets, caller)
        return JSONResponse({"object": "list", "data": [_model_object(name) for name in names]})

    async def model(self, request: Request, caller: Caller) -> Response:
        """Return one of the presets that the caller can use, by its name or an alias."""
        name = request.path_params["model"]
        if not await asyncio.to_thread(self._is_offered, name, caller):
            text = f"There is no model {name[:60]!r} here. GET {V1}/models lists the models."
            return refusal_response(request.scope, HTTPStatus.NOT_FOUND, text, param="model", code="model_not_found")
        return JSONResponse(_model_object(name))

    def _is_offered(self, name: str, caller: Caller) -> bool:
        preset = (self._aliases[name] or self._context.default_preset(caller)) if name in self._aliases else name
        return preset in self._offered_presets(caller)

    def _store_call(self, job: Job, adjusted: list[Adjustment], url: str | None) -> None:
        """Store the values that an alias changed, and the webhook, for the job.

        Raises: DataFolderError if they cannot be stored. The job is then stopped.
        """
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
            raise RequestError(
                f"limit={limit[:20]!r}", f"must be between 1 and {MOST_ON_PAGE}", f"leave it out for {DEFAULT_PAGE}"
            )
        if order not in ("asc", "desc"):
            raise RequestError(f"order={order[:20]!r}", "must be asc or desc", "leave it out for the newest first")
        if after is not None and self._context.find_job(after, caller) is None:
            raise RequestError(
                f"after={after[:60]!r}", "must be the id of one of your videos", "use last_id of the previous page"
            )
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

    async def _find_file(self, request: Request, caller: Caller) -> Path:
        job, variant = await asyncio.to_thread(self._find_own_job, request, caller), request.query_params.get("variant", "video")
        if variant not in ("video", "thumbnail"):
            raise RequestError(f"variant={variant[:20]!r}", "must be video or thumbnail", "leave it out for the video")
        if job.state != "finished":
            raise VideoMissing(
                "this video", f"has nothing to download: it is {_describe_state(job)}", "poll until it is completed"
            )
        if variant == "video":
            path = await asyncio.to_thread(find_file_below, job.folder, VIDEO_FILE)
        else:
            path = await cancel_on_disconnect(request, self._poster(job))
        if path is None:
            raise VideoMissing("this video's file", "no longer exists", "generate it again with the same seed")
        return path

    async def _poster(self, job: Job) -> Path | None:
        async with self._posters:
            return await make_poster(job.folder, self._context.engine.sandbox)

    async def _stop(self, job: Job) -> None:
        """Cancel the job and wait for its end. Raises: StillStopping after STOP_SECONDS, StudioError if it cannot be stopped."""
        engine = self._context.engine
        await asyncio.to_thread(engine.queue.cancel, job.id)
        until = time.monotonic() + STOP_SECONDS
        while not (await asyncio.to_thread(engine.jobs.find, job.id)).has_ended:
            if time.monotonic() > until:
                raise StillStopping("this video", "is being stopped and cannot be deleted yet", "try again in a minute")
            await asyncio.sleep(_LOOK_SECONDS)

    def _offered_presets(self, caller: Caller) -> list[str]:
        can_run = self._context.preset_filter(caller)
        return [preset.name for preset in list_presets() if can_run(preset)]


def _describe_state(job: Job) -> str:
    return {"queued": "queued", "running": "running", "failed": "failed", "cancelled": "stopped"}[job.state]


def _model_object(name: str) -> dict[str, object]:
    """Return a preset as OpenAI's `model` object. `created` is 0, because presets have no date."""
    return {"id": name, "object": "model", "created": 0, "owned_by": _OWNER}


def _error_response(request: Request, error: StudioError) -> Response:
    """Return a response with the error's message. Its status tells clients whether to try again."""
    status, code = _error_status(error)
    headers = {"connection": "close"} if isinstance(error, BodyTooLarge) else None
    return refusal_response(request.scope, status, error_sentence(error), headers, param=_error_field(error), code=code)


def _error_status(error: StudioError) -> tuple[HTTPStatus, str | None]:
    match error:
        case BodyTooLarge():
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, None
        case UnknownModel():
            return HTTPStatus.BAD_REQUEST, "model_not_found"
        case UnknownField():
            return HTTPStatus.BAD_REQUEST, "unknown_parameter"
        case RequestError():
            return HTTPStatus.BAD_REQUEST, "invalid_value"
        case VideoMissing() | JobNotFound():
            return HTTPStatus.NOT_FOUND, None
        case StillStopping():
            return HTTPStatus.CONFLICT, "still_stopping"
        case QueueFull():
            return HTTPStatus.TOO_MANY_REQUESTS, None
        case Busy() | DataFolderError():
            return HTTPStatus.SERVICE_UNAVAILABLE, None
    return HTTPStatus.CONFLICT, None


def _error_field(error: StudioError) -> str | None:
    """Return the field that caused an error: the first word of the message. Return None if this word is not a field of the
    API."""
    word = re.split(r"\W", error.what, maxsplit=1)[0]
    if isinstance(error, UnknownField):
        return word
    word = _OURS.get(word, word)
    return word if isinstance(error, RequestError) and word in _PARAMS else None
