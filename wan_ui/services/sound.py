"""Serve the audio of a job's video as a WAV file to callers who may see the video. No file is stored."""

import asyncio
import tempfile
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.errors import Busy, StudioError
from backend.media.sandbox import LONG_SECONDS, Requester, SandboxCall, SandboxPool
from backend.media.sound import MODEL_SOUND, write_sound
from backend.schemas.events import VIDEO_FILE, VideoResult
from wan_ui.gateway.access import Access
from wan_ui.services.media import PRIVATE, busy_response, find_visible_job, not_found_response
from wan_ui.services.sandbox_calls import cancel_on_disconnect, requester_from_request

_PREFIX = "studio/sound"


def sound_url(job: Job) -> str:
    return f"{_PREFIX}/{quote(job.id)}.wav"


def sound_route(engine: Engine, access: Access) -> Route:
    """Return the route that serves the addresses of `sound_url`.

    It answers 404 for another visitor's job, a missing job and a silent video.
    """

    async def serve(request: Request) -> Response:
        job = await asyncio.to_thread(find_visible_job, engine, request, access)
        result = await asyncio.to_thread(engine.events.result, job.id) if job else None
        if job is None or result is None or not result.has_sound:
            return not_found_response()
        try:
            sound = await cancel_on_disconnect(
                request, _extract_audio(engine.sandbox, job, result, requester_from_request(request))
            )
        except Busy as error:
            return busy_response(error)
        return not_found_response() if sound is None else Response(sound, media_type="audio/wav", headers=PRIVATE)

    return Route(f"/{_PREFIX}/{{job_id}}.wav", serve, methods=["GET"])


async def _extract_audio(sandbox: SandboxPool, job: Job, result: VideoResult, who: Requester) -> bytes | None:
    """Return the WAV file, None if the audio cannot be read. Raises: Busy."""
    exact = job.folder / MODEL_SOUND if result.request == job.request else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound.wav"
        work = (job.folder / VIDEO_FILE, result.num_frames / result.fps, exact, path)
        try:
            await sandbox.run_async(SandboxCall(work=write_sound, arguments=work, seconds=LONG_SECONDS), who)
            return await asyncio.to_thread(path.read_bytes)
        except Busy:
            raise
        except (StudioError, OSError):
            return None
