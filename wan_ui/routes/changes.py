"""`/studio/changes`: changes that a visitor can see, as server-sent events, so that pages need no polling.

Each event is a JSON object. `parts` are the changed parts of the page as HTML, by element id. `count` is the engine's change
count at the last change that the visitor can see: a page with an older count reloads its view. `since` is the time of the first
change that the event reports. A browser keeps one such stream for all of its tabs.
Source of the format: html.spec.whatwg.org, section 9.2, "Server-sent events".
"""

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from wan_ui.components.events import now_microseconds, stamp_html
from wan_ui.header import status_html
from wan_ui.queue.html import queue_html
from wan_ui.queue.queue_query import visible_queue
from wan_ui.services.caller import Caller
from wan_ui.services.change_notifier import watch_changes
from wan_ui.services.shared_work import SharedWork
from wan_ui.services.studio_context import StudioContext

PATH = "/studio/changes"
SHORTEST_SECONDS = 0.2  # the shortest time between two events
SILENCE_SECONDS = 15.0  # if nothing changes, a "still" event is sent this often, which keeps the connection open
AT_ONCE = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # tells proxies not to delay events

SharedRenders = SharedWork[tuple[str, bool, int], tuple[dict[str, str], tuple[object, ...]]]
"""The rendered parts, shared by all streams of one visitor in one language."""


def changes_route(context: StudioContext) -> Route:
    renders: SharedRenders = SharedWork()

    async def answer(request: Request) -> Response:
        events = _event_stream(context, context.identify_caller(gr.Request(request)), renders)
        return StreamingResponse(events, media_type="text/event-stream", headers=AT_ONCE)

    return Route(PATH, answer, methods=["GET"])


async def _event_stream(context: StudioContext, caller: Caller, renders: SharedRenders) -> AsyncIterator[str]:
    sent: dict[str, str] = {}
    seen, last = None, 0
    yield "retry: 2000\n\n"
    async for since in watch_changes(context.engine, SILENCE_SECONDS):
        if since is None:
            yield "event: still\ndata: {}\n\n"
            continue
        count, now = context.engine.event_log.count_changes(), now_microseconds()
        whose = caller.owner, caller.is_operator, id(caller.texts)
        parts, jobs = await renders.result(whose, functools.partial(_render_parts, context, caller))
        news = {name: html for name, html in parts.items() if sent.get(name) != html}
        if news or jobs != seen:
            last = last if jobs == seen else count
            sent, seen = sent | news, jobs
            drawn = {name: stamp_html(html, now) for name, html in news.items()}
            yield f"data: {json.dumps({'count': last, 'since': since, 'parts': drawn})}\n\n"
        await asyncio.sleep(SHORTEST_SECONDS)


def _render_parts(context: StudioContext, caller: Caller) -> tuple[dict[str, str], tuple[object, ...]]:
    """Render the parts of the page that all views share, as HTML by element id.

    Also return a value that changes whenever open pages must reload their view.
    """
    queue, workers = visible_queue(context, caller), context.engine.pool.workers()
    known = sorted(repr(one) for worker in workers for one in (*worker.facts.warm, *worker.facts.cached_models))
    parts = {
        "worker-status": status_html(workers, caller.texts),
        "queue": queue_html(queue, caller.texts),
        # When the cached models or compiled programs change, the page requests a new time estimate.
        "warm": hashlib.sha256("".join(known).encode()).hexdigest()[:16],
    }
    entries = (*queue.running, *queue.waiting, *queue.recent)
    return parts, (context.engine.num_outside_changes, [(entry.job, entry.view) for entry in entries])
