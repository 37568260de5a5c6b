"""Build a request from the settings of the page or a program.

An Animate video has the length of its driving video and the aspect ratio of its image, so these files are read in the sandbox.
"""

import asyncio
from typing import Any

from backend.media.driving_video import settings_from_files
from backend.media.sandbox import LONG_SECONDS, SandboxCall
from backend.schemas.request import GenerationRequest
from presets import Preset
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import requester_from_caller
from wan_ui.services.studio_context import StudioContext

_OPENED = ("drive", "image", "num_frames", "trim", "width", "height", "fps")


async def request_from_settings(
    context: StudioContext, caller: Caller, preset: Preset, values: dict[str, Any]
) -> GenerationRequest:
    """Build a validated request from settings by name. Raises: StudioError."""
    if preset.segment_frames is not None and values.get("drive"):
        known = {name: values.get(name) for name in _OPENED}
        opening = SandboxCall(work=settings_from_files, arguments=(preset, known), seconds=LONG_SECONDS)
        values = values | await context.engine.sandbox.run_async(opening, requester_from_caller(caller))
    return await asyncio.to_thread(GenerationRequest.from_preset, preset, **values)
