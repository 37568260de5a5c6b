"""Estimate a job's disk usage and compare it with the free space."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from backend.schemas.request import GenerationRequest
from backend.schemas.shots import OVERLAP_LENGTHS

RESERVE_BYTES = 100 * 2**20  # always kept free for the store, the logs and uploads
# The most bytes of latents that any model needs per pixel of each frame: 16 channels of 4 bytes for 8 x 8 pixels of 4 frames.
_LATENT_BYTES = 0.25
_LATENTS = 11  # stored latent arrays: four in the state file, four in its next version, the result, and two of an input image
# The bytes on the disk per pixel of each frame. They include the video, and the decoded frames, which exist twice while their
# file is replaced.
_PIXEL_BYTES = 6.6
# The bytes per pixel of each upscaled frame: the upscaled parts of the video, and the video that joins these parts.
_LARGER_BYTES = 0.6
_PREVIEW_BYTES = 2.0  # size of one step's previews in bytes, divided by the number of pixels of one frame
# The bytes that the last frames of a shot take, per pixel of one frame. These frames are stored in the shot's folder, and again
# as the next shot's input.
_SHOT_BYTES = 6.0 * max(OVERLAP_LENGTHS)
# The bytes per token of the longest prompt: embeddings of two prompts and an image, 4,096 numbers each.
_TOKEN_BYTES = 36 * 2**10


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """A job needs `needed` bytes, including `RESERVE_BYTES`. The disk has `free` bytes left, or `is_of_whole_disk` in total."""

    free: int
    needed: int
    is_of_whole_disk: bool = False

    def __str__(self) -> str:
        if self.is_of_whole_disk:
            return f"{format_gigabytes(self.needed)} needed, {format_gigabytes(self.free)} in total"
        return f"{format_gigabytes(self.free)} free, {format_gigabytes(self.needed)} needed"


def needed_bytes(request: GenerationRequest) -> int:
    """Estimate the largest size of the job's folder in bytes from the video's size and steps, and the preset's longest prompt."""
    width, height = request.final_size
    larger = _LARGER_BYTES * width * height * request.total_frames if request.upscale else 0
    if request.finished_video:
        return round(larger)
    text = _TOKEN_BYTES * request.resolved_preset.max_prompt_tokens
    frame = request.width * request.height
    frames = request.total_frames
    latents = _LATENTS * _LATENT_BYTES * frame * frames
    previews = _PREVIEW_BYTES * frame * request.num_steps * max(1, len(request.shots))
    shots = _SHOT_BYTES * frame * len(request.shots)
    return round(latents + _PIXEL_BYTES * frame * frames + previews + shots + text + larger)


def find_shortage(folder: Path, needed: int, *, of_whole_disk: bool = False) -> Shortage | None:
    """Return the shortage if the disk lacks space for `needed` + `RESERVE_BYTES`, None if it suffices or is not known."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    free = usage.total if of_whole_disk else usage.free
    needed += RESERVE_BYTES
    return Shortage(free=free, needed=needed, is_of_whole_disk=of_whole_disk) if free < needed else None


def format_gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
