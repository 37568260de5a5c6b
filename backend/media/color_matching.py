"""Matches a shot's colours to the previous shots, so that a storyboard's colours do not drift. Pixel values are 0 to 255.

This module corrects two errors in each colour channel. First, the model renders its start image a little lighter, darker or
flatter. So the median and spread of the shot's first frame are set to the values of the previous shot's last frame, and all
frames get the same linear change. (Objects that enter the scene change the mean, but the median stays a colour of the
background.) Second, the medians drift during a shot. So each frame is shifted to the median of the first shot, if the difference
is at most `MOST_DRIFT`. A larger difference is treated as a change of content. To avoid flicker, the shift is averaged over
neighbouring frames. The shift grows from zero over `RAMP_FRAMES` frames, so that no sudden change is visible at the cut.
"""

import dataclasses
import json
from pathlib import Path
from typing import Self

import numpy as np

MOST_DRIFT = 12.0  # a channel's drift above this (of 255) is not corrected, because it may be a change of content
MOST_GAIN = 1.15
MEDIAN_RADIUS = 4  # levels (of 255): `_fine_median` averages the pixels that differ from the median by at most this
RAMP_FRAMES = 8  # number of frames over which the shift grows from zero to its full value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """The median of each channel over all frames of a shot."""

    median: tuple[float, float, float]

    @classmethod
    def from_frames(cls, frames: np.ndarray) -> Self:
        """Frames are uint8 [F, H, W, 3]."""
        medians = np.stack([_fine_median(frame.reshape(-1, 3)) for frame in frames])
        red, green, blue = (float(value) for value in np.median(medians, axis=0))
        return cls(median=(red, green, blue))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` wrote. Raises: OSError, ValueError."""
        return cls(median=tuple(json.loads(path.read_text("utf-8"))["median"]))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"median": self.median}), "utf-8")


def grade_frames(frames: np.ndarray, before: np.ndarray, look: Look, shared_frame: int = 0) -> np.ndarray:
    """Match the colours of a shot, frames uint8 [F, H, W, 3], that continues from the frame `before` [H, W, 3]. Frame
    `shared_frame` of the shot shows the same image as `before`. `look` has the colours of the scene's first shot."""
    # The gain and the offset of each channel give the shared frame the median and the spread of `before`. The spread is the mean
    # distance from the median. A very different spread is only approached.
    own, wanted = (one.reshape(-1, 3).astype(np.float64) for one in (frames[shared_frame], before))
    middle, aim = _fine_median(own), _fine_median(wanted)
    spread, goal = np.abs(own - middle).mean(axis=0), np.abs(wanted - aim).mean(axis=0)
    gain = np.where(spread > 1.0, goal / np.maximum(spread, 1.0), 1.0).clip(1 / MOST_GAIN, MOST_GAIN)
    offset = aim - gain * middle
    medians = np.stack([_fine_median(frame.reshape(-1, 3)) for frame in frames])
    away = np.asarray(look.median) - (gain * medians + offset)
    reach = RAMP_FRAMES // 2
    padded = np.pad(np.where(np.abs(away) <= MOST_DRIFT, away, 0.0), ((reach, reach), (0, 0)), mode="edge")
    smooth = np.stack([padded[index : index + 2 * reach + 1].mean(axis=0) for index in range(len(frames))])
    shift = smooth * ((np.arange(len(frames)) - shared_frame) / RAMP_FRAMES).clip(0.0, 1.0)[:, None]
    graded = frames * gain + offset + shift[:, None, None]
    return np.round(graded).clip(0, 255).astype(np.uint8)


def _fine_median(pixels: np.ndarray) -> np.ndarray:
    """Return the mean of the values near the median, for each channel of pixels [N, 3]. Unlike the median, it is not rounded to
    whole levels."""
    median = np.median(pixels, axis=0)
    near = np.abs(pixels - median) <= MEDIAN_RADIUS
    # If the median is the mean of two distant levels, no pixel is near the median. Then the median itself is the result.
    count = near.sum(axis=0)
    return np.where(count > 0, (pixels * near).sum(axis=0) / np.maximum(count, 1), median)
