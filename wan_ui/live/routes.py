"""The routes of the live view: start, say (prompts and actions), stop, and the stream of frames.

`GET /studio/live/JOB/frames` returns packets: two big-endian numbers of four bytes, then data. The second number is the length of
the data, the first the frame number of a JPEG, or 0xFFFFFFFF if the data is JSON with the state. A single endless response passes
through every proxy and share link. When a new block arrives, older frames that a slow browser has not received yet are skipped.
"""

import asyncio
import contextlib
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.errors import StudioError
from backend.schemas.events import Block
from backend.schemas.live import frame_name
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from wan_ui.components.progress import StageView, advance_view, progress_texts
from wan_ui.form.controls import read_controls
from wan_ui.form.settings_html import own_preset_values
from wan_ui.gateway.json_body import json_endpoint, read_json_object
from wan_ui.gateway.uploads import check_upload_path
from wan_ui.live.html import live_presets
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import follow_events
from wan_ui.services.sandbox_calls import cancel_on_disconnect
from wan_ui.services.studio_context import StudioContext

UNSEEN_SECONDS = 15.0  # a live video without an open page ends after this time
TURN_SECONDS = 60.0  # while another video waits, a live video may continue for this time
_POLL_SECONDS = 1.0


class LiveWatcher:
    """Ends live videos that no page shows, and live videos that used up their time while others wait. Times are monotonic."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._watchers: Counter[str] = Counter()
        self._seen: dict[str, float] = {}
        self._ends: dict[str, float] = {}  # job id -> time at which the video must end, while other videos wait
        threading.Thread(target=self._end_unwatched, name="live", daemon=True).start()

    def mark_seen(self, job_id: str) -> None:
        with self._lock:
            self._seen[job_id] = time.monotonic()

    @contextlib.contextmanager
    def keep_watched(self, job_id: str) -> Generator[None]:
        """Count one more page that shows this video, until the `with` block ends."""
        with self._lock:
            self._watchers[job_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._watchers[job_id] -= 1
                self._seen[job_id] = time.monotonic()

    def seconds_left(self, job_id: str) -> float | None:
        """Return the seconds until the video must end, None while no other video waits."""
        end = self._ends.get(job_id)
        return None if end is None else max(0.0, end - time.monotonic())

    def _end_unwatched(self) -> None:
        while self._engine.event_log.wait_for_change(-1, 0.0) is not None:  # None: the engine is closed
            for job_id in self._jobs_to_end(time.monotonic()):
                with contextlib.suppress(StudioError):
                    self._engine.queue.cancel(job_id)
            time.sleep(_POLL_SECONDS)

    def _jobs_to_end(self, now: float) -> list[str]:
        """Return the live videos to end now. After a restart of the server, pages have UNSEEN_SECONDS to reconnect."""
        running = [job for job in self._engine.library.unended(None) if job.summary.is_open]
        others_wait = any(job.state == "queued" for job in self._engine.library.unended(None))
        with self._lock:
            known = {job.id for job in running}
            for kept in (self._seen, self._ends):
                for job_id in kept.keys() - known:
                    del kept[job_id]
            over = []
            for job in running:
                seen = self._seen.setdefault(job.id, now)
                if self._watchers[job.id] <= 0 and now - seen > UNSEEN_SECONDS:
                    over.append(job.id)
                elif job.state == "running" and others_wait:
                    if now > self._ends.setdefault(job.id, now + TURN_SECONDS):
                        over.append(job.id)
                else:
                    self._ends.pop(job.id, None)
            return over


STATE = 0xFFFFFFFF
STATE_SECONDS = 1.0  # between two packets with the state
_AT_ONCE = {"cache-control": "no-store", "x-accel-buffering": "no"}  # proxies must not delay packets


def live_routes(context: StudioContext) -> Sequence[Route]:
    """Return the routes, and start the thread that ends unwatched live videos."""
    watch = LiveWatcher(context.engine)

    @json_endpoint
    async def start(request: Request) -> dict[str, Any]:
        caller, given = context.identify_caller(gr.Request(request)), await read_json_object(request)

        async def submit() -> Job:
            return await context.submit(await asyncio.to_thread(to_request, given), caller)

        job = await cancel_on_disconnect(request, submit())
        watch.mark_seen(job.id)
        return {"job": job.id}

    @json_endpoint
    async def steer(request: Request) -> Response | dict[str, Any]:
        job, given = _find_own_job(context, request), await read_json_object(request)
        if job is None:
            return _missing_response()
        prompt, action = (given.get(name) if isinstance(given.get(name), str) else None for name in ("prompt", "action"))
        await asyncio.to_thread(context.engine.steer_live, job.id, prompt=prompt, action=action)
        return {}

    @json_endpoint
    async def stop(request: Request) -> Response | dict[str, Any]:
        job = _find_own_job(context, request)
        if job is None:
            return _missing_response()
        await asyncio.to_thread(context.engine.queue.cancel, job.id)
        return {}

    async def frames(request: Request) -> Response:
        job = _find_own_job(context, request)
        if job is None or not (job.request.is_open or job.has_ended):  # ended live videos are not open
            return _missing_response()
        packets = _packet_stream(context, watch, job, context.identify_caller(gr.Request(request)))
        return StreamingResponse(packets, media_type="application/octet-stream", headers=_AT_ONCE)

    @json_endpoint
    async def presets(request: Request) -> dict[str, Any]:
        caller = context.identify_caller(gr.Request(request))
        offered = live_presets(context.preset_filter(caller))
        return {"presets": await asyncio.to_thread(own_preset_values, context, caller, offered)}

    return [
        Route("/studio/live/presets", presets, methods=["POST"]),
        Route("/studio/live", start, methods=["POST"]),
        Route("/studio/live/{job_id}/say", steer, methods=["POST"]),
        Route("/studio/live/{job_id}/stop", stop, methods=["POST"]),
        Route("/studio/live/{job_id}/frames", frames, methods=["GET"]),
    ]


def to_request(given: dict[str, object]) -> GenerationRequest:
    """Build the request from untrusted values of the page. Raises: StudioError."""
    preset = find_preset(str(given.get("preset", "")))
    prompt, image = (given.get(name) for name in ("prompt", "image"))
    own = {
        "prompt": prompt if isinstance(prompt, str) else "",
        "image": str(check_upload_path(image)) if image else None,
        "num_frames": preset.max_frames - (preset.max_frames - preset.first_frames) % preset.frame_step,
        "is_open": True,
    }
    return GenerationRequest.from_preset(preset, **read_controls(given.get("settings")) | own)


async def _packet_stream(context: StudioContext, watch: LiveWatcher, job: Job, caller: Caller) -> AsyncIterator[bytes]:
    view, last, phase = StageView(phase="queued"), 0.0, ""
    with watch.keep_watched(job.id):
        async for events in follow_events(context.engine, job.id, STATE_SECONDS):
            blocks = [event for event in events if isinstance(event, Block)]
            for event in events:
                view = advance_view(view, event)
            for number in range(blocks[-1].first, blocks[-1].end) if blocks else ():
                path = job.folder / frame_name(number)
                try:
                    picture = await asyncio.to_thread(path.read_bytes)
                except OSError:
                    continue  # the frame was deleted, because this page is far behind
                yield struct.pack(">II", number, len(picture)) + picture
            now = time.monotonic()
            if now - last >= STATE_SECONDS or view.phase != "live" or phase != "live":
                last, phase = now, view.phase
                headline, detail, _ = progress_texts(view, caller.texts)
                left = watch.seconds_left(job.id)
                state = json.dumps(
                    {
                        "phase": view.phase,
                        "words": " · ".join(filter(None, (headline, detail))),
                        "left": None if left is None else round(left),
                        "fps": job.request.fps,
                        "block": job.request.resolved_preset.frame_step,
                        "has_ended": not view.is_active,
                        "error": f"{view.cause} {view.fix}".strip() if view.phase == "failed" else "",
                    }
                ).encode()
                yield struct.pack(">II", STATE, len(state)) + state


def _find_own_job(context: StudioContext, request: Request) -> Job | None:
    return context.find_job(request.path_params["job_id"], context.identify_caller(gr.Request(request)))


def _missing_response() -> Response:
    return JSONResponse({"error": "There is no such video."}, status_code=404)
