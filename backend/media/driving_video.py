"""The clip that drives a video, segment by segment: read as it is needed, so that it may be as long as it likes.

Where the clip ends within a segment, its last frames follow in reverse, then forwards again, until the segment is full.
Source: diffusers' pipelines of models that animate, `pad_video_frames`, and the `ProcessVideosInputStep` of their second version,
which does so once.
"""

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
    """A clip that is gone through in segments."""

    def segments(self, count: int, length: int, repeats_end: bool = True) -> Iterator[np.ndarray]:
        """See `in_segments`; frames are uint8 [height, width, 3]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivingClip:
    """A clip on disk. Raises, while it is read: ClipError."""

    path: str
    part: Part

    def segments(self, count: int, length: int, repeats_end: bool = True) -> Iterator[np.ndarray]:
        """See `Segmented`. Two segments are in memory at most."""
        return split_into_segments(read_clip(self.path, self.part), count, length, repeats_end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlankClip:
    """A black clip of this size (width, height), where only shapes count."""

    size: tuple[int, int]

    def segments(self, count: int, length: int, repeats_end: bool = True) -> Iterator[np.ndarray]:
        """See `Segmented`."""
        width, height = self.size
        for _ in range(count):
            yield np.broadcast_to(np.uint8(0), (length, height, width, 3))


def split_into_segments(frames: Iterator[np.ndarray], count: int, length: int, repeats_end: bool = True) -> Iterator[np.ndarray]:
    """So many segments of `length` frames, stacked; each begins with the last frame of the one before. After the end the frames
    go back, and forth again; the one where they turn is there twice if it `repeats_end`."""
    endless, kept = _back_and_forth(frames, length, repeats_end), []
    for _ in range(count):
        kept = kept[-OVERLAP:] if kept else kept
        while len(kept) < length:
            kept.append(next(endless))
        yield np.stack(kept)


def _back_and_forth(frames: Iterator[np.ndarray], length: int, repeats_end: bool) -> Iterator[np.ndarray]:
    """The frames, then the last `length` of them without end."""
    last: collections.deque[np.ndarray] = collections.deque(maxlen=length)
    for frame in frames:
        last.append(frame)
        yield frame
    there = list(last)
    while True:
        there.reverse()
        yield from there if repeats_end or len(there) == 1 else there[1:]


def settings_from_files(preset: Preset, given: Mapping[str, Any]) -> dict[str, int]:
    """What a request for a driven video leaves open that its files say: `num_frames` from the whole clip, `width` and `height`
    from the picture. `given` are the request's settings by name, None where there is none. Raises: ClipError, ImageError."""
    found: dict[str, int] = {}
    if preset.segment_frames is None or not given.get("drive"):
        return found
    if given.get("num_frames") is None and given.get("trim") is None:
        seconds = read_clip_facts(given["drive"]).seconds
        found["num_frames"] = clip_frames(seconds, given.get("fps") or preset.fps)
    if given.get("image") and given.get("width") is None and given.get("height") is None:
        found["width"], found["height"] = size_for_image(preset, load_checked_image(given["image"]).size)
    return found
