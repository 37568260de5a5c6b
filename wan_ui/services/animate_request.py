"""The request for a video of a program or of the page, with what its files say: a driven video is as long as its clip, and as
wide as its picture. Files of strangers are opened in the sandbox."""

import asyncio
from typing import Any

from backend.media.driving_video import settings_from_files
from backend.media.sandbox import LONG_SECONDS, SandboxCall
from backend.schemas.request import GenerationRequest
from presets import Preset
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import visitor
from wan_ui.services.studio_context import StudioContext

_OPENED = ("drive", "image", "num_frames", "trim", "width", "height", "fps")


async def described(context: StudioContext, caller: Caller, preset: Preset, values: dict[str, Any]) -> GenerationRequest:
    """The request of these settings, by their names. Raises: StudioError."""
    if preset.segment_frames is not None and values.get("drive"):
        known = {name: values.get(name) for name in _OPENED}
        opening = SandboxCall(work=settings_from_files, arguments=(preset, known), seconds=LONG_SECONDS)
        values = values | await context.engine.sandbox.run_async(opening, visitor(caller))
    return await asyncio.to_thread(lambda: GenerationRequest.from_preset(preset, **values))
