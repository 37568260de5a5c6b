"""Brings a shot's colours to those of the shots before it, so that a storyboard does not drift. Pixels are 0 to 255.

Two things are corrected, each channel by itself. What the model makes of the picture that it starts from is a little lighter,
darker or flatter than that picture: median and spread of the shot's first frame become those of the frame before it, and all
frames change by the same straight line. (The mean would follow every change at the edges of what is shown; the median is that of
the background.) Over the shot its medians wander: each frame is moved so that its median goes back to the first shot's, if it
lies no more than `MOST_DRIFT` away; beyond that the difference is taken for what the shot shows. The movement is averaged over
neighbouring frames, so that nothing flickers, and begins with the first frame as it is.
"""

import dataclasses
import json
from pathlib import Path
from typing import Self

import numpy as np

MOST_DRIFT = 12.0  # of 255, for each channel
MOST_GAIN = 1.15
NEAR = 4  # levels around a median whose pixels make it finer than whole levels
RAMP_FRAMES = 8  # from a first frame that stays as it is to the whole correction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """The median of each channel over a whole shot."""

    median: tuple[float, float, float]

    @classmethod
    def from_frames(cls, frames: np.ndarray) -> Self:
        """That of frames uint8 [F, H, W, 3]."""
        red, green, blue = (float(value) for value in np.median(_frame_medians(frames), axis=0))
        return cls(median=(red, green, blue))

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote. Raises: OSError, ValueError."""
        return cls(median=tuple(json.loads(path.read_text("utf-8"))["median"]))

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps({"median": self.median}), "utf-8")


def grade_frames(frames: np.ndarray, before: np.ndarray, look: Look, same: int = 0) -> np.ndarray:
    """Frames uint8 [F, H, W, 3] of a shot that goes on from the frame `before` [H, W, 3], which is frame `same` of the shot, in
    the colours of that frame and of the first shot's `look`."""
    gain, offset = _gain_and_offset(frames[same], before)
    medians = gain * _frame_medians(frames) + offset
    away = np.asarray(look.median) - medians
    shift = np.where(np.abs(away) <= MOST_DRIFT, away, 0.0)
    ramp = ((np.arange(len(frames)) - same) / RAMP_FRAMES).clip(0.0, 1.0)[:, None]
    shift = _smooth(shift) * ramp
    graded = frames * gain + offset + shift[:, None, None]
    return np.round(graded).clip(0, 255).astype(np.uint8)


def _gain_and_offset(frame: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gain and offset of each channel that give the frame the median of the one that is wanted, and, within `MOST_GAIN`, its
    spread: the mean distance from the median."""
    own, other = (one.reshape(-1, 3).astype(np.float64) for one in (frame, wanted))
    middle, aim = _fine_median(own), _fine_median(other)
    spread, goal = np.abs(own - middle).mean(axis=0), np.abs(other - aim).mean(axis=0)
    gain = np.where(spread > 1.0, goal / np.maximum(spread, 1.0), 1.0).clip(1 / MOST_GAIN, MOST_GAIN)
    return gain, aim - gain * middle


def _frame_medians(frames: np.ndarray) -> np.ndarray:
    """Of each frame and channel, [F, 3]."""
    return np.stack([_fine_median(frame.reshape(-1, 3)) for frame in frames])


def _fine_median(pixels: np.ndarray) -> np.ndarray:
    """Of each channel of [N, 3]: the mean of the pixels near the median, so that less than a level can be told."""
    median = np.median(pixels, axis=0)
    near = np.abs(pixels - median) <= NEAR
    count = near.sum(axis=0)  # none where it lies between two colours of as many pixels
    return np.where(count > 0, (pixels * near).sum(axis=0) / np.maximum(count, 1), median)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Each row of [F, 3] averaged with its neighbours, as many on both sides as `RAMP_FRAMES` has in a half."""
    reach = RAMP_FRAMES // 2
    padded = np.pad(values, ((reach, reach), (0, 0)), mode="edge")
    return np.stack([padded[index : index + 2 * reach + 1].mean(axis=0) for index in range(len(values))])
