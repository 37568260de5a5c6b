"""`/v1/videos/{id}/events`: the progress of one video as server-sent events, so that programs need not poll.

Each event is a JSON object:

- `phase`: the present stage, such as `queued` or `denoising`; the last event has `finished`, `failed` or `cancelled`,
- `fraction`: the completed part, from 0 to 1; it never decreases,
- `text`: one line in English for people,
- `index`, `total`: the number of finished steps, frames or bytes of the stage, and their total; 0 if unknown,
- `seconds_left`: the estimated time until the end, null if unknown,
- `ahead`: the number of queued videos before this video,
- `preview`: a new preview image as a data URL, null if it did not change,
- `video`: in the last event, the `video` object with status and error,
- `result`: in the last event of a finished video, its facts and its request.

A program that reconnects receives the present state first. Source of the format: html.spec.whatwg.org, section 9.2.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator

from backend.engine.job import Job
from backend.schemas.events import VideoResult
from wan_ui.components.progress import StageView
from wan_ui.routes.api import describe_progress, video_facts
from wan_ui.routes.video_values import video_object
from wan_ui.services.job_followers import follow_job
from wan_ui.services.media import MEDIA_TYPES, find_file_below
from wan_ui.services.studio_context import StudioContext


async def stream_events(context: StudioContext, job: Job) -> AsyncIterator[str]:
    """Yield the video's events until it ends. A comment every two seconds keeps the connection open."""
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
    job = context.engine.jobs.find(job_id)
    end: dict[str, object] = {"video": video_object(job, view, context.engine.cleaner.limits)}
    return end | {"result": _describe_result(job_id, view.result)} if view.phase == "finished" and view.result else end


def _describe_result(job_id: str, result: VideoResult) -> dict[str, object]:
    facts = video_facts(job_id, result)
    return facts | {"has_sound": result.has_sound, "notes": result.notes, "request": result.request.for_sharing()}


def _read_preview(job: Job, name: str | None) -> str | None:
    """Return a preview image as a data URL. Return None if its file no longer exists."""
    path = find_file_below(job.folder, name) if name else None
    try:
        image = path.read_bytes() if path else b""
    except OSError:
        return None
    return f"data:{MEDIA_TYPES[path.suffix]};base64,{base64.b64encode(image).decode()}" if path else None
