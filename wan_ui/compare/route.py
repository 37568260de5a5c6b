"""Serves a comparison as one tiled mp4, made when it is first asked for, to those who may see its videos."""

import threading
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.errors import Busy, JobNotFound, VideoFileError
from backend.media.tiles import Tile, write_tiled
from wan_ui.compare.html import labels_of
from wan_ui.desk.access import Access
from wan_ui.desk.media import VIDEO, before
from wan_ui.words.english import ENGLISH


def compare_route(engine: Engine, access: Access) -> Route:
    """`/studio/compare/ID.mp4`. Answers 404 for somebody else's comparison, as if there were none."""
    making = threading.Lock()  # one video at a time: each decodes up to four

    def serve(request: Request) -> Response:
        with making:
            path = _tiled(engine, request, access)
        if path is None:
            return PlainTextResponse("Not found", status_code=404)
        return FileResponse(path, media_type="video/mp4", headers={"Cache-Control": "private, no-store"})

    return Route("/studio/compare/{comparison_id}.mp4", serve, methods=["GET", "HEAD"])


def _tiled(engine: Engine, request: Request, access: Access) -> Path | None:
    found = engine.shelf.comparison(request.path_params["comparison_id"])
    if found is None or not access.may_see(request.cookies, found.owner):
        return None
    folder = engine.settings.comparisons_dir
    path = folder / f"{found.id}.mp4"  # a safe name: the store has just found this id
    if path.is_file():
        return path
    try:
        jobs = [engine.job(job_id) for job_id in found.jobs]
        tiles = [
            Tile(path=job.folder / VIDEO, label=label)
            for job, label in zip(jobs, labels_of([job.request for job in jobs], ENGLISH), strict=True)
        ]
        original = before(jobs[0], engine.decoding) if len(jobs) == 1 else None
        if original is not None:
            made = Tile(path=tiles[0].path, label=ENGLISH.compare_after)
            tiles = [Tile(path=original, label=ENGLISH.compare_before), made]
        folder.mkdir(exist_ok=True)
        engine.decoding.run(write_tiled, tiles, [job.request for job in jobs], path)
    except (JobNotFound, VideoFileError, Busy):
        return None
    return path
