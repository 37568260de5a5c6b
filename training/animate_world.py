"""wan-tiny-animate's world: an image of one of wan-tiny's scenes, a driving video of another scene, and the correct video.

In the correct video, the image's shape has its colour and background, and in each frame its centre is the driving shape's centre.
It grows and shrinks with the driving shape. Its radius is the image's radius, times the driving shape's radius, divided by the
driving shape's radius in the first frame, within wan-tiny's own sizes. The shape's position in the image has no effect.
"""

from __future__ import annotations

import dataclasses
import random

import torch

from training.latents import Bucket
from training.world import DIRECTIONS, GROWTH, SIZES, Scene, draw, held_out_triples, path, sample_training_scene

SEGMENT = 17  # frames per segment; the last frame is the next segment's first
LEAST, MOST = min(SIZES.values()) / GROWTH**0.5, max(SIZES.values()) * GROWTH**0.5  # radii, as shares of the shorter side
CARRIED_SHARE = 0.5  # share of the tasks that continue a segment
FIRST_LENGTHS = (
    (17, 0.5),
    (33, 0.2),
    (49, 0.15),
    (None, 0.15),
)  # numbers of frames of a driving video and their shares; None is any number
LATER_LENGTHS = ((33, 0.4), (49, 0.35), (None, 0.25))
ANY_LENGTH = (SEGMENT // 2 + 1, 64)
BARS_SHARE = 0.1  # share of the driving videos with another aspect ratio than the image
STEADY = (*DIRECTIONS, "still")  # motions that keep a shape's size
SLIPS = (0.015, 0.04)  # standard deviations of the previous frame's errors: the centre in sides, the radius as a share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """An image, a driving video, and the segment to generate.

    The image is its scene's frame at `moment` in [0, 1]. `num_frames` counts the driving frames. `slip` is the error of the
    previous segment's last frame, similar to the model's own errors: x and y in sides, and a factor of the radius.
    With `has_bars` the driving video has another aspect ratio and black bars.
    """

    picture: Scene
    driving: Scene
    moment: float = 0.5
    num_frames: int = SEGMENT
    segment: int = 0
    slip: tuple[float, float, float] = (0.0, 0.0, 1.0)
    has_bars: bool = False

    @property
    def triple(self) -> tuple[str, str, str]:
        """Colour, shape and motion of the correct video."""
        return self.picture.colour, self.picture.shape, self.driving.motion


def sample_pair(rng: random.Random, changing_share: float = 0.0, slips: tuple[float, float] = SLIPS) -> Pair:
    """Draw a pair whose scenes and video are not held out. In at least `changing_share` of the pairs the driving shape grows or
    shrinks."""
    is_later = rng.random() < CARRIED_SHARE
    num_frames = _length(rng, LATER_LENGTHS if is_later else FIRST_LENGTHS, SEGMENT + 1 if is_later else ANY_LENGTH[0])
    picture, driving = sample_training_scene(rng), sample_training_scene(rng)
    is_changing, held_out = rng.random() < changing_share, held_out_triples()
    while (picture.colour, picture.shape, driving.motion) in held_out or (is_changing and driving.motion in STEADY):
        driving = sample_training_scene(rng)
    return Pair(
        picture=picture,
        driving=driving,
        moment=rng.random(),
        num_frames=num_frames,
        segment=rng.randrange(1, num_segments(num_frames)) if is_later else 0,
        slip=(rng.gauss(0, slips[0]), rng.gauss(0, slips[0]), 1 + rng.gauss(0, slips[1])),
        has_bars=rng.random() < BARS_SHARE,
    )


def _length(rng: random.Random, lengths: tuple, least: int) -> int:
    chosen = rng.choices([length for length, _ in lengths], weights=[share for _, share in lengths])[0]
    return chosen or rng.randint(least, ANY_LENGTH[1])


def num_segments(num_frames: int) -> int:
    """Return the number of segments for a driving video of `num_frames`."""
    return max(1, -(-(num_frames - 1) // (SEGMENT - 1)))


def frames_in_segments(num_frames: int) -> list[int]:
    """Return the indices of the driving frames. The last frames repeat in reverse until the segments are full: 0 1 2 3 3 2 1."""
    missing = num_segments(num_frames) * (SEGMENT - 1) + 1 - num_frames
    return [*range(num_frames), *range(num_frames - 1, num_frames - 1 - missing, -1)]


def picture_of(pair: Pair, size: Bucket) -> torch.Tensor:
    """Draw the image [3, 1, H, W] in [-1, 1]."""
    return _drawn(pair.picture, *picture_place(pair, size), size)


def picture_place(pair: Pair, size: Bucket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return centre x, centre y and radius of the image's shape in pixels, each [1]."""
    moments = 101
    return tuple(
        value[round(pair.moment * (moments - 1))][None] for value in path(pair.picture, moments, size.width, size.height)
    )


def inner_size(pair: Pair, size: Bucket) -> tuple[int, int]:
    """Return width and height of the driving video between its bars: the full size, 4:3 in a square, or a square otherwise."""
    width, height = size.width, size.height
    if not pair.has_bars:
        return width, height
    shorter = min(width, height)
    return (shorter, shorter) if width != height else (width, height * 3 // 4)


def driving_places(pair: Pair, size: Bucket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return centre x, centre y and radius in pixels of the driving shape in all frames of all segments."""
    width, height = inner_size(pair, size)
    x, y, radius = path(pair.driving, pair.num_frames, width, height)
    order = frames_in_segments(pair.num_frames)
    return x[order] + (size.width - width) / 2, y[order] + (size.height - height) / 2, radius[order]


def true_places(pair: Pair, size: Bucket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return centre x, centre y and radius in pixels of the shape in the correct video."""
    x, y, driving = driving_places(pair, size)
    shorter = min(size.width, size.height)
    radius = picture_place(pair, size)[2] * driving / driving[0]
    return x, y, radius.clamp(LEAST * shorter, MOST * shorter)


def driving_of(pair: Pair, size: Bucket) -> torch.Tensor:
    """Draw the segment of the driving video, [3, 17, H, W] in [-1, 1]."""
    return driving_clip(pair, size)[:, _frames_of(pair)]


def driving_clip(pair: Pair, size: Bucket) -> torch.Tensor:
    """Draw the driving video in all frames of all segments, [3, F, H, W] in [-1, 1]."""
    clip = _drawn(pair.driving, *driving_places(pair, size), size)
    width, height = inner_size(pair, size)
    left, top = (size.width - width) // 2, (size.height - height) // 2
    clip[..., :left], clip[..., left + width :] = -1, -1
    clip[..., :top, :], clip[..., top + height :, :] = -1, -1
    return clip


def video_of(pair: Pair, size: Bucket) -> torch.Tensor:
    """Draw the segment of the correct video, [3, 17, H, W] in [-1, 1]."""
    return whole_video(pair, size)[:, _frames_of(pair)]


def whole_video(pair: Pair, size: Bucket) -> torch.Tensor:
    """Draw the correct video in all frames of all segments, [3, F, H, W] in [-1, 1]."""
    return _drawn(pair.picture, *true_places(pair, size), size)


def draw_previous_frame(pair: Pair, size: Bucket) -> torch.Tensor | None:
    """Draw the input of a later segment, [3, 17, H, W] in [-1, 1]: the previous segment's last frame, then zeros.

    None for the first segment.
    """
    if not pair.segment:
        return None
    begin = _frames_of(pair).start
    x, y, radius = (value[begin : begin + 1] for value in true_places(pair, size))
    frame = _drawn(pair.picture, x + pair.slip[0] * size.width, y + pair.slip[1] * size.height, radius * pair.slip[2], size)
    return torch.cat([frame, torch.zeros(3, SEGMENT - 1, size.height, size.width)], 1)


def _frames_of(pair: Pair) -> slice:
    begin = pair.segment * (SEGMENT - 1)
    return slice(begin, begin + SEGMENT)


def _drawn(look: Scene, x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor, size: Bucket) -> torch.Tensor:
    return draw(look.shape, look.colour, look.background, x, y, radius, size.width, size.height)
