"""Serve a comparison as one tiled mp4, silent or with the audio of one video, to callers who may see its videos.

The file is created at the first request.
"""

import asyncio
from pathlib import Path
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.engine.user_presets import Comparison
from backend.errors import Busy, StudioError
from backend.media.sandbox import EXPORT_SECONDS, Requester, SandboxCall
from backend.media.tiles import Tile, write_side_by_side
from backend.schemas.events import VIDEO_FILE
from wan_ui.compare.html import difference_labels
from wan_ui.gateway.access import Access
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.media import busy_response, file_response, make_before_video, not_found_response
from wan_ui.services.sandbox_calls import cancel_on_disconnect, requester_from_request


def compare_route(engine: Engine, access: Access) -> Route:
    """Return the route `/studio/compare/ID.mp4`. `?sound=2` adds the audio of the second tile.

    It answers 404 for another visitor's comparison, an unknown id, and a missing or silent tile.
    """
    # A lock per comparison: requests for the same file wait until the first request has written it.
    making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def serve(request: Request) -> Response:
        found = await asyncio.to_thread(_find_comparison, engine, request, access)
        if found is None:
            return not_found_response()
        lock = making.setdefault(found.id, asyncio.Lock())
        who, tile = requester_from_request(request, access), request.query_params.get("sound", "")
        try:
            path = await cancel_on_disconnect(request, _write_comparison(engine, found, tile, who, lock))
        except Busy as error:
            return busy_response(error)
        return file_response(path, cache="private, no-store")

    return Route("/studio/compare/{comparison_id}.mp4", serve, methods=["GET", "HEAD"])


def _find_comparison(engine: Engine, request: Request, access: Access) -> Comparison | None:
    comparison = engine.user_presets.comparison(request.path_params["comparison_id"])
    return comparison if comparison is not None and access.may_see(request.cookies, comparison.owner) else None


async def _write_comparison(
    engine: Engine, comparison: Comparison, tile: str, who: Requester, making: asyncio.Lock
) -> Path | None:
    heard = await asyncio.to_thread(_find_audio_source, engine, comparison, tile) if tile else None
    if tile and heard is None:
        return None
    folder = engine.settings.comparisons_dir
    path = folder / (f"{comparison.id}.{tile}.mp4" if tile else f"{comparison.id}.mp4")  # id and tile are checked above
    if path.is_file():
        return path
    async with making:
        if path.is_file():
            return path
        try:
            jobs = [await asyncio.to_thread(engine.jobs.find, job_id) for job_id in comparison.jobs]
            original = await make_before_video(jobs[0], engine.sandbox, who) if len(jobs) == 1 else None
            folder.mkdir(exist_ok=True)
            requests, videos = [job.request for job in jobs], [job.folder / VIDEO_FILE for job in jobs]
            if original is not None:  # without `fps`, both tiles play at the frame rate of the combined video
                before, after = ENGLISH.compare_before, ENGLISH.compare_after
                tiles = [Tile(path=original, label=before), Tile(path=videos[0], label=after)]
            else:
                named = zip(requests, videos, difference_labels(requests, ENGLISH), strict=True)
                tiles = [Tile(path=video, label=label, fps=request.fps) for request, video, label in named]
            work = (tiles, requests, path, heard, comparison.columns or 2)
            await engine.sandbox.run_async(
                SandboxCall(work=write_side_by_side, arguments=work, seconds=EXPORT_SECONDS, task="comparison"), who
            )
        except Busy:
            raise
        except (StudioError, OSError):
            return None
        return path


def _find_audio_source(engine: Engine, comparison: Comparison, tile: str) -> Path | None:
    """Return the video file whose audio the comparison plays, None if the tile is missing or silent.

    `tile` is the tile's number, from 1. If one video is compared with its source clip, the clip is tile 1 and is silent.
    """
    try:
        jobs = [engine.jobs.find(job_id) for job_id in comparison.jobs]
    except StudioError:
        return None
    tiles = {str(number): job for number, job in enumerate(jobs, 1)}
    if len(jobs) == 1 and jobs[0].request.has_original:
        tiles = {"2": jobs[0]}
    job = tiles.get(tile)
    return job.folder / VIDEO_FILE if job and engine.library.with_sound([job.id]) else None
