"""`/studio/changes`: what has changed for a visitor, as server-sent events, so that pages are told and need not ask.

Each event carries as JSON those parts of the page that now look different, by element id; `count`, the engine's count of
changes when something changed last that this visitor sees, by which a page knows that its view may show something old; and
`since`, when the first of these changes came. Where nothing that the visitor sees has changed, nothing is sent. A browser keeps
one such stream for all of its tabs.
Source of the format: html.spec.whatwg.org, section 9.2, "Server-sent events".
"""

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Sequence

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from backend.schemas.worker import WorkerView
from wan_ui.components.events import now_microseconds, stamp_html
from wan_ui.header import status_html
from wan_ui.queue.html import queue_html
from wan_ui.queue.queue_query import queue_of
from wan_ui.services.caller import Caller
from wan_ui.services.change_notifier import watch_changes
from wan_ui.services.shared_work import SharedWork
from wan_ui.services.studio_context import StudioContext

PATH = "/studio/changes"
SHORTEST_SECONDS = 0.2  # between two events
SILENCE_SECONDS = 15.0  # "still" is sent after that, so that proxies keep the connection and pages know that it is there
_AT_ONCE = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass each event on

Looks = SharedWork[tuple[str, bool, int], tuple[dict[str, str], tuple[object, ...]]]
"""All streams of one visitor in one language share one look."""


def changes_route(context: StudioContext) -> Route:
    """The endpoint."""

    looks: Looks = SharedWork()

    async def answer(request: Request) -> Response:
        events = _events(context, context.identify_caller(gr.Request(request)), looks)
        return StreamingResponse(events, media_type="text/event-stream", headers=_AT_ONCE)

    return Route(PATH, answer, methods=["GET"])


async def _events(context: StudioContext, caller: Caller, looks: Looks) -> AsyncIterator[str]:
    sent: dict[str, str] = {}
    seen, last = None, 0
    yield "retry: 2000\n\n"
    async for since in watch_changes(context.engine, SILENCE_SECONDS):
        if since is None:
            yield "event: still\ndata: {}\n\n"
            continue
        count, now = context.engine.changes(), now_microseconds()
        whose = caller.owner, caller.is_operator, id(caller.texts)
        parts, jobs = await looks.result(whose, functools.partial(_look, context, caller))
        news = {name: html for name, html in parts.items() if sent.get(name) != html}
        if news or jobs != seen:
            last = last if jobs == seen else count
            sent, seen = sent | news, jobs
            drawn = {name: stamp_html(html, now) for name, html in news.items()}
            yield f"data: {json.dumps({'count': last, 'since': since, 'parts': drawn})}\n\n"
        await asyncio.sleep(SHORTEST_SECONDS)


def _warm(workers: Sequence[WorkerView]) -> str:
    """Short, and another word whenever other models are kept or other programs are ready: then the estimate is another one."""
    known = sorted(repr(one) for worker in workers for one in (*worker.facts.warm, *worker.facts.kept))
    return hashlib.sha256("".join(known).encode()).hexdigest()[:16]


def _look(context: StudioContext, caller: Caller) -> tuple[dict[str, str], tuple[object, ...]]:
    """The parts that all views share, as this visitor sees them, by element id; and all that other views may show of the
    visitor's jobs, to be compared."""
    queue = queue_of(context, caller)
    parts = {
        "worker-status": status_html(context.engine.workers(), caller.texts),
        "queue": queue_html(queue, caller.texts),
        "warm": _warm(context.engine.workers()),
    }
    entries = (*queue.running, *queue.waiting, *queue.recent)
    return parts, (context.engine.touches(), [(entry.job, entry.view) for entry in entries])
