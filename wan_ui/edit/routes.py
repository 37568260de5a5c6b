"""Routes of the edit view: facts of uploaded files, queueing a video, and its estimate.

Requests name files by the paths of their uploads, which `gateway/uploads.py` checks. A video's input files are copied into its
folder.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.routing import Route

from backend.engine.job import Job
from backend.errors import StudioError
from backend.media.sandbox import LONG_SECONDS, SandboxCall
from backend.schemas.finished import upscale_clip_request
from backend.schemas.request import GenerationRequest
from wan_ui.edit.clip import check_painted_mask, read_image_facts, read_mask_facts, read_uploaded_clip
from wan_ui.edit.html import clip_presets
from wan_ui.edit.modes import read_request
from wan_ui.form.estimate import estimate_html
from wan_ui.form.settings_html import own_preset_values
from wan_ui.gateway.json_body import json_endpoint, read_json_object
from wan_ui.gateway.uploads import check_upload_path, public_upload_path
from wan_ui.services.animate_request import request_from_settings
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import cancel_on_disconnect, requester_from_caller
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import parse_offer, upscale_file_request

_FAR = 1e5  # upper limit of the page's numbers of pixels, seconds and frames per second


def edit_routes(context: StudioContext) -> Sequence[Route]:
    async def run_in_sandbox(request: Request, call: SandboxCall) -> dict[str, Any]:
        who, path = requester_from_caller(context.identify_caller(gr.Request(request))), call.arguments[0]
        facts = await cancel_on_disconnect(request, context.engine.sandbox.run_async(call, who))
        return facts | {"path": public_upload_path(path)}

    @json_endpoint
    async def clip(request: Request) -> dict[str, Any]:
        path = check_upload_path((await read_json_object(request)).get("clip"), "clip")
        return await run_in_sandbox(request, SandboxCall(work=read_uploaded_clip, arguments=(path,), seconds=LONG_SECONDS))

    @json_endpoint
    async def mask(request: Request) -> dict[str, Any]:
        given = await read_json_object(request)
        paths = check_upload_path(given.get("mask"), "mask"), check_upload_path(given.get("clip"), "clip")
        return await run_in_sandbox(request, SandboxCall(work=read_mask_facts, arguments=paths, seconds=LONG_SECONDS))

    @json_endpoint
    async def picture(request: Request) -> dict[str, Any]:
        path = check_upload_path((await read_json_object(request)).get("picture"))
        return await run_in_sandbox(request, SandboxCall(work=read_image_facts, arguments=(path,)))

    @json_endpoint
    async def make(request: Request) -> dict[str, Any]:
        caller, given = context.identify_caller(gr.Request(request)), await read_json_object(request)
        if given.get("way") == "upscale":  # the whole clip
            clip, offer = check_upload_path(given.get("clip"), "clip"), parse_offer(str(given.get("upscale", "")))
            wanted = await upscale_file_request(context, caller, clip, *offer)
        else:
            wanted = await request_from_settings(context, caller, *await asyncio.to_thread(read_request, given))
        job = await cancel_on_disconnect(request, _queue_video(context, caller, wanted))
        return {"job": job.id}

    @json_endpoint
    async def estimate(request: Request) -> dict[str, Any]:
        caller, given = context.identify_caller(gr.Request(request)), await read_json_object(request)
        return {"html": await asyncio.to_thread(_render_estimate, context, caller, given)}

    @json_endpoint
    async def presets(request: Request) -> dict[str, Any]:
        caller = context.identify_caller(gr.Request(request))
        offered = clip_presets(context.preset_filter(caller))
        return {"presets": await asyncio.to_thread(own_preset_values, context, caller, offered)}

    return [
        Route("/studio/edit/presets", presets, methods=["POST"]),
        Route("/studio/edit/clip", clip, methods=["POST"]),
        Route("/studio/edit/mask", mask, methods=["POST"]),
        Route("/studio/edit/picture", picture, methods=["POST"]),
        Route("/studio/edit", make, methods=["POST"]),
        Route("/studio/edit/estimate", estimate, methods=["POST"]),
    ]


async def _queue_video(context: StudioContext, caller: Caller, wanted: GenerationRequest) -> Job:
    if wanted.mask is not None:
        call = SandboxCall(work=check_painted_mask, arguments=(wanted,), seconds=LONG_SECONDS)
        await context.engine.sandbox.run_async(call, requester_from_caller(caller))
    return await context.submit(wanted, caller)


def _render_estimate(context: StudioContext, caller: Caller, given: dict[str, Any]) -> str:
    """Render the estimate, without opening a file. Return "" for an incomplete request. Prompt and mask can be missing."""
    estimates, is_upscale = context.engine.estimates, given.get("way") == "upscale"
    try:
        if is_upscale:  # the page sends the facts about the clip
            facts = [given.get(name) for name in ("width", "height", "seconds", "fps")]
            numbers = [one for one in facts if isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < _FAR]
            if len(numbers) < len(facts):
                return ""
            size, (seconds, fps) = (int(numbers[0]), int(numbers[1])), map(float, numbers[2:])
            wanted = upscale_clip_request("", size, seconds, fps, "/", *parse_offer(str(given.get("upscale", ""))))
        else:
            prompt = given.get("prompt")
            given = given | {"prompt": prompt if isinstance(prompt, str) and prompt.strip() else "?"}
            if given.get("mask") is None:
                given["mask"] = given.get("clip")
            preset, settings = read_request(given)
            wanted = GenerationRequest.from_preset(preset, **settings)
    except StudioError:
        return ""
    is_warm = is_upscale or estimates.is_warm(estimates.shape(wanted))
    return estimate_html(estimates.estimate(wanted), is_warm, caller.texts)
