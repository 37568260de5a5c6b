"""Settings of videos that Animate models generate: the number of segments, and the size for an image. This module opens no file.
Source: diffusers modular_pipelines/wan_animate_2, `encoders.py`: the preset's area and the image's aspect are kept."""

import math

from backend.errors import RequestError
from backend.schemas.clip import check_trim
from backend.schemas.prompts import check_text
from backend.schemas.settings import VideoSettings
from presets import Preset

OVERLAP = 1  # number of pixel frames at a segment's start that repeat the previous segment's end


def num_segments(num_frames: int, segment_frames: int) -> int:
    """Return how many overlapping segments of `segment_frames` a video of `num_frames` needs, both in pixel frames.

    Surplus frames of the last segment are not part of the video.
    """
    return max(1, math.ceil((num_frames - OVERLAP) / (segment_frames - OVERLAP)))


def count_segments(request: VideoSettings) -> int:
    """1 if the video is not generated in segments."""
    length = request.segment_frames
    return 1 if length is None else num_segments(request.num_frames, length)


def driving_prompt(request: VideoSettings) -> str:
    return request.drive_prompt or request.resolved_preset.drive_prompt


def size_for_image(preset: Preset, picture: tuple[int, int]) -> tuple[int, int]:
    """Return the (width, height) with the preset's area and the aspect of an image of size `picture`, within the preset's
    limits."""
    aspect, area, step = picture[1] / picture[0], preset.width * preset.height, preset.size_multiple
    wide, high = math.sqrt(area / aspect), math.sqrt(area * aspect)
    width = min(max(int(wide) // step * step, preset.min_width), preset.max_width)
    height = min(max(int(high) // step * step, preset.min_height), preset.max_height)
    return width, height


def check_drive(request: VideoSettings, preset: Preset) -> None:
    """Check the driving clip and its settings. Raises: RequestError."""
    if request.drive is None:
        if request.drive_prompt and not request.shots:
            raise RequestError("drive_prompt was given", "but needs drive", "give drive too, or leave this out")
        return
    check_text("drive_prompt", request.drive_prompt, preset)
    if bool(request.video) != bool(request.mask):
        there, missing = ("video", "mask") if request.video else ("mask", "video")
        raise RequestError(f"{missing} is missing:", f"{there} needs it to place the person", "give both or neither")
    for name in ("strength", "extend"):
        if getattr(request, name) is not None:
            raise RequestError(f"{name} was given", "but cannot be combined with drive", "leave it out")
    check_trim(request, preset)
