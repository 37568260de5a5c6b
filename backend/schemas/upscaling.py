"""Upscaling of a finished video: the scales, and the names of upscaling models. This module opens no file."""

import re

from backend.errors import RequestError, shorten
from backend.schemas.settings import Settings, VideoSettings

SCALES = (2, 4)
EMBEDDED = "animevideov3"
"""The upscaler that comes with the studio, and the default."""
MOST_PIXELS = 8192 * 4320  # most pixels of an upscaled frame, because `backend.media.video` reads no larger frames
# Most pixels of all frames of a clip before it is upscaled. Ten minutes of 1920x1080 at 30 fps have slightly fewer.
MOST_IN_ALL = 40_000_000_000
FOREIGN = "clip"
"""The preset name of a clip that no preset has generated."""
_NAME = re.compile(r"[^./\\:\0][^/\\:\0]{0,199}")
_HUB_FILE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*:[\w][\w. -]*(/[\w][\w. -]*)*\.(safetensors|pth?)")


def upscaler_name(request: VideoSettings) -> str:
    return request.upscaler or EMBEDDED


def without_upscaling(request: Settings) -> Settings:
    """The result is not validated."""
    return request.model_copy(update={"upscale": 0, "upscaler": "", "finished_video": None})


def is_on_hub(name: str) -> bool:
    """Return whether the name has the form "owner/repository:file.safetensors"."""
    return bool(_HUB_FILE.fullmatch(name))


def check_upscale(request: VideoSettings) -> None:
    """Check the scale, the upscaler's name and the size. Raises: RequestError."""
    if request.upscale not in (0, *SCALES):
        raise RequestError(f"upscale={request.upscale}", f"must be 0, {' or '.join(map(str, SCALES))}", "0 is off")
    if request.upscale == 0:
        if request.upscaler or request.finished_video:
            raise RequestError("upscaler was given", "but needs upscale", "give upscale as 2 or 4 too")
        return
    if request.upscaler and not (_NAME.fullmatch(request.upscaler) or is_on_hub(request.upscaler)):
        rule = "must be the name of a file in the data folder's upscalers folder, or owner/repository:file.safetensors"
        raise RequestError(f"upscaler={shorten(request.upscaler)}", rule, f"leave it out to use {EMBEDDED}")
    width, height = request.final_size
    if width * height > MOST_PIXELS:
        what, rule = f"upscale={request.upscale} makes frames of {width}x{height}, which", f"may have {MOST_PIXELS:,} pixels"
        raise RequestError(what, rule, "choose a smaller scale, or a smaller video")
    if request.finished_video and request.width * request.height * request.num_frames > MOST_IN_ALL:
        what = f"{request.num_frames:,} frames of {request.width}x{request.height}"
        rule = f"are too many: all pixels together may be {MOST_IN_ALL // 10**9} billion"
        raise RequestError(what, rule, "cut out the part that you want first")
