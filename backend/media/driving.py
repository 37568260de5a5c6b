"""The clip that drives a video, segment by segment: read as it is needed, so that it may be as long as it likes.

Where the clip ends within a segment, its last frames follow in reverse, then forwards again, until the segment is full.
Source: diffusers modular_pipelines/wan_animate_2, `WanAnimate2ProcessVideosInputStep`, which does so once.
"""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from backend.contract.clip import Part
from backend.contract.drive import OVERLAP
from backend.media.clips import read_clip


class Segmented(Protocol):
    """A clip that is gone through in segments."""

    def segments(self, count: int, length: int) -> Iterator[np.ndarray]:
        """So many segments of `length` frames, uint8 [length, height, width, 3]; each begins with the last frame of the one
        before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivingClip:
    """A clip on disk. Raises, while it is read: ClipError."""

    path: str
    part: Part

    def segments(self, count: int, length: int) -> Iterator[np.ndarray]:
        """See `Segmented`. Two segments are in memory at most."""
        frames, kept = self._without_end(length), []
        for _ in range(count):
            kept = kept[-OVERLAP:] if kept else kept
            while len(kept) < length:
                kept.append(next(frames))
            yield np.stack(kept)

    def _without_end(self, length: int) -> Iterator[np.ndarray]:
        """The clip's frames, then those of its last `length` that go back and forth."""
        last: collections.deque[np.ndarray] = collections.deque(maxlen=length)
        for frame in read_clip(self.path, self.part):
            last.append(frame)
            yield frame
        there = list(last)
        while True:
            there.reverse()
            yield from there


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlankClip:
    """A black clip of this size (width, height), where only shapes count."""

    size: tuple[int, int]

    def segments(self, count: int, length: int) -> Iterator[np.ndarray]:
        """See `Segmented`."""
        width, height = self.size
        for _ in range(count):
            yield np.broadcast_to(np.uint8(0), (length, height, width, 3))
