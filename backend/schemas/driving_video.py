"""Driven videos in a request: how many segments they have, and their size from the picture's. Checks, and opens no file.

Source: diffusers modular_pipelines/wan_animate_2, `encoders.py`: the size's area is kept, and the picture's aspect.
"""

import math

from backend.errors import RequestError
from backend.schemas.clip import check_trim
from backend.schemas.prompts import check_text
from backend.schemas.settings import VideoSettings, find_preset
from presets import Preset

OVERLAP = 1  # pixel frames with which a segment begins, those that the one before ended with


def num_segments(num_frames: int, segment_frames: int) -> int:
    """How many segments of so many pixel frames a video of `num_frames` has; the last one may be cut."""
    return max(1, math.ceil((num_frames - OVERLAP) / (segment_frames - OVERLAP)))


def count_segments(request: VideoSettings) -> int:
    """How many segments the request's video has; one if it is made whole."""
    length = request.segment_frames
    return 1 if length is None else num_segments(request.num_frames, length)


def driving_prompt(request: VideoSettings) -> str:
    """What the driving clip is said to show."""
    return request.drive_prompt or find_preset(request.preset).drive_prompt


def size_for_image(preset: Preset, picture: tuple[int, int]) -> tuple[int, int]:
    """Width and height of a video with the preset's area and the aspect of a picture of this size (width, height), within the
    preset's limits."""
    aspect, area, step = picture[1] / picture[0], preset.width * preset.height, preset.size_multiple
    wide, high = math.sqrt(area / aspect), math.sqrt(area * aspect)
    width = min(max(int(wide) // step * step, preset.min_width), preset.max_width)
    height = min(max(int(high) // step * step, preset.min_height), preset.max_height)
    return width, height


def check_drive(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError for a driving clip that the preset does not take, or what does not go with one."""
    if request.drive is None:
        if request.drive_prompt and not request.shots:
            raise RequestError("drive_prompt was given", "but no drive, to which it belongs", "give drive too, or leave this out")
        return
    check_text("drive_prompt", request.drive_prompt, preset)
    if bool(request.video) != bool(request.mask):
        there, missing = ("video", "mask") if request.video else ("mask", "video")
        raise RequestError(f"{missing} is missing:", f"beside {there} it says where the figure goes", "give both, or none")
    for name in ("strength", "extend"):
        if getattr(request, name) is not None:
            raise RequestError(f"{name} was given", "beside drive, which says what is made", "leave it out")
    if request.step_cache > 0:
        raise RequestError(f"step_cache={request.step_cache:g}", "cannot be, in a video that is made in segments", "set it to 0")
    check_trim(request, preset)
