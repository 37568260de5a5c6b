"""The edit view's addresses: what an uploaded clip, mask or picture is, a video made of them, and how long it will take.

All are given paths of uploads of this server, as `desk/uploads.py` checks it; a video's files are copied into its own folder.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backend.contract.request import GenerationRequest, find_preset
from backend.engine.job import Job
from backend.errors import ClipError, StudioError
from wan_ui.desk.desk import Desk
from wan_ui.desk.uploads import checked_upload
from wan_ui.desk.visit import Visit
from wan_ui.edit.clip import described
from wan_ui.edit.ways import check_painted, fields_of, mask_facts, picture_facts
from wan_ui.form.estimate import estimate_html
from wan_ui.parts.notes import sentence

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_OPTIONAL = ("negative_prompt", "steps", "guidance", "seed", "strength")


def edit_routes(desk: Desk) -> Sequence[Route]:
    """The addresses."""

    async def clip(request: Request) -> Response:
        given = await _json(request)
        try:
            path = checked_upload(given.get("clip"), "clip")
            return JSONResponse(await asyncio.to_thread(desk.engine.decoding.run, _described, path))
        except StudioError as error:
            return _refused(error)

    async def mask(request: Request) -> Response:
        given = await _json(request)
        try:
            paths = checked_upload(given.get("mask"), "mask"), checked_upload(given.get("clip"), "clip")
            return JSONResponse(await asyncio.to_thread(desk.engine.decoding.run, mask_facts, *paths))
        except StudioError as error:
            return _refused(error)

    async def picture(request: Request) -> Response:
        given = await _json(request)
        try:
            path = checked_upload(given.get("picture"))
            return JSONResponse(await asyncio.to_thread(desk.engine.decoding.run, picture_facts, path))
        except StudioError as error:
            return _refused(error)

    async def make(request: Request) -> Response:
        visit, given = desk.visit(gr.Request(request)), await _json(request)
        try:
            job = await asyncio.to_thread(_queued, desk, visit, given)
        except StudioError as error:
            return _refused(error)
        return JSONResponse({"job": job.id})

    async def estimate(request: Request) -> Response:
        visit, given = desk.visit(gr.Request(request)), await _json(request)
        return JSONResponse({"html": await asyncio.to_thread(_estimated, desk, visit, given)})

    return [
        Route("/studio/edit/clip", clip, methods=["POST"]),
        Route("/studio/edit/mask", mask, methods=["POST"]),
        Route("/studio/edit/picture", picture, methods=["POST"]),
        Route("/studio/edit", make, methods=["POST"]),
        Route("/studio/edit/estimate", estimate, methods=["POST"]),
    ]


def _described(path: Path) -> dict[str, Any]:
    """An upload that is no clip is of no use, unless it is a picture. Raises: ClipError."""
    try:
        return described(path)
    except ClipError:
        if path.suffix.lower() not in _PICTURES:
            path.unlink(missing_ok=True)
        raise


def _queued(desk: Desk, visit: Visit, given: dict[str, Any]) -> Job:
    """Queues the video that is asked for. Raises: StudioError."""
    wanted = to_request(given)
    if wanted.mask is not None:
        desk.engine.decoding.run(check_painted, wanted)
    return desk.submit(wanted, visit)


def _estimated(desk: Desk, visit: Visit, given: dict[str, Any]) -> str:
    """The line at the button; empty while what is asked for is not whole, but for the prompt and what is still to be painted."""
    prompt = given.get("prompt")
    stands_in = {"prompt": prompt if isinstance(prompt, str) and prompt.strip() else "?"}
    if given.get("mask") is None:
        stands_in["mask"] = given.get("clip")  # no file is opened for an estimate
    try:
        wanted = to_request(given | stands_in)
    except StudioError:
        return ""
    engine = desk.engine
    return estimate_html(engine.estimate(wanted), engine.is_warm(engine.shape(wanted)), visit.texts)


def to_request(given: dict[str, Any]) -> GenerationRequest:
    """The request in what the page sent, which may be anything. Raises: StudioError."""
    preset = find_preset(str(given.get("preset", "")))
    wanted = {name: given[name] for name in _OPTIONAL if given.get(name) is not None}
    return GenerationRequest.from_preset(
        preset,
        prompt=given.get("prompt") if isinstance(given.get("prompt"), str) else "",
        width=given.get("width"),
        height=given.get("height"),
        **wanted,
        **fields_of(given, preset),
    )


async def _json(request: Request) -> dict[str, Any]:
    """What the page sent; nothing if it is no JSON object."""
    try:
        given = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _refused(error: StudioError) -> Response:
    return JSONResponse({"error": sentence(error)})
