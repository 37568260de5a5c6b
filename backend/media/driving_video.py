"""The driving clip, divided into segments. The clip is read as needed, so that it can have any length. If it ends within a
segment, its last frames follow in reverse, then forwards again, as often as needed. Where the direction changes, Animate-1 shows
the frame once, and Animate-2 twice. Sources in diffusers: `pad_video_frames` for Animate-1, `ProcessVideosInputStep` for
Animate-2."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from backend.media.clips import read_clip, read_clip_facts
from backend.media.pictures import load_checked_image
from backend.schemas.clip import Part, clip_frames
from backend.schemas.driving_video import OVERLAP, size_for_image
from presets import Preset


class SegmentedClip(Protocol):
    """A clip that is read in segments."""

    def segments(self, count: int, length: int, repeats_turning_frame: bool = True) -> Iterator[np.ndarray]:
        """Yield `count` segments, uint8 [length, height, width, 3], as `split_into_segments` does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivingClip:
    path: str
    part: Part

    def segments(self, count: int, length: int, repeats_turning_frame: bool = True) -> Iterator[np.ndarray]:
        """Raises ClipError while it is iterated. At most two segments are in memory."""
        return split_into_segments(read_clip(self.path, self.part), count, length, repeats_turning_frame)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlankClip:
    """A black clip of `size` (width, height), for compiling programs."""

    size: tuple[int, int]

    def segments(self, count: int, length: int, repeats_turning_frame: bool = True) -> Iterator[np.ndarray]:
        width, height = self.size
        for _ in range(count):
            yield np.broadcast_to(np.uint8(0), (length, height, width, 3))


def split_into_segments(
    frames: Iterator[np.ndarray], count: int, length: int, repeats_turning_frame: bool = True
) -> Iterator[np.ndarray]:
    """Yield `count` segments of `length` stacked frames. Each segment starts with the previous segment's last frame. After the
    clip's end, frames run backwards and forwards again. With `repeats_turning_frame`, the frame at each turn appears twice."""
    endless, kept = _back_and_forth(frames, length, repeats_turning_frame), []
    for _ in range(count):
        kept = kept[-OVERLAP:] if kept else kept
        while len(kept) < length:
            kept.append(next(endless))
        yield np.stack(kept)


def _back_and_forth(frames: Iterator[np.ndarray], length: int, repeats_turning_frame: bool) -> Iterator[np.ndarray]:
    """Yield all `frames`, then the last `length` frames backwards and forwards without end."""
    last: collections.deque[np.ndarray] = collections.deque(maxlen=length)
    for frame in frames:
        last.append(frame)
        yield frame
    there = list(last)
    while True:
        there.reverse()
        yield from there if repeats_turning_frame or len(there) == 1 else there[1:]


def settings_from_files(preset: Preset, given: Mapping[str, Any]) -> dict[str, int]:
    """Return missing settings of an Animate video that follow from its files: `num_frames` from the whole clip, `width` and
    `height` from the image. `given` has None for missing settings. Raises: ClipError, ImageError."""
    found: dict[str, int] = {}
    if preset.segment_frames is None or not given.get("drive"):
        return found
    if given.get("num_frames") is None and given.get("trim") is None:
        seconds = read_clip_facts(given["drive"]).seconds
        found["num_frames"] = clip_frames(seconds, given.get("fps") or preset.fps)
    if given.get("image") and given.get("width") is None and given.get("height") is None:
        found["width"], found["height"] = size_for_image(preset, load_checked_image(given["image"]).size)
    return found
