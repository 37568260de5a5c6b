"""wan-tiny-animate's world: a picture of one of wan-tiny's scenes, a driving clip of another one, and the video that is right.

What is right: the picture's shape, in its colour and on its background, has its centre where the driving shape has its own in
each frame, and grows and shrinks as that does: its radius is the picture's times the driving shape's, divided by the driving
shape's in the clip's first frame, and never outside wan-tiny's own sizes. Where the picture has its shape does not matter.
"""

from __future__ import annotations

import dataclasses
import random

import torch

from training.latents import Bucket
from training.world import DIRECTIONS, GROWTH, SIZES, Scene, draw, held_out_triples, path, sample_training_scene

SEGMENT = 17  # frames that are made at once; the last one is the next segment's first
LEAST, MOST = min(SIZES.values()) / GROWTH**0.5, max(SIZES.values()) * GROWTH**0.5  # radii, as shares of the shorter side
CARRIED_SHARE = 0.5  # of the tasks that go on after a segment
FIRST_LENGTHS = ((17, 0.5), (33, 0.2), (49, 0.15), (None, 0.15))  # frames of a driving clip and how often; None is any number
LATER_LENGTHS = ((33, 0.4), (49, 0.35), (None, 0.25))
ANY_LENGTH = (SEGMENT // 2 + 1, 64)
BARS_SHARE = 0.1  # of the driving clips that have another form than the picture
STEADY = (*DIRECTIONS, "still")  # motions that leave a shape's size
SLIPS = (0.015, 0.04)  # how far a carried frame is off, standard deviations: the centre in sides, the radius as a share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A picture and a driving clip, and the segment of the video that is to be made. The picture is its scene's frame at
    `moment` in [0, 1]; `num_frames` are the driving clip's. `slip` is how far the carried frame is off, as the model's own is:
    x and y in sides, and the radius's factor. With `has_bars` the driving clip has another form, between black bars."""

    picture: Scene
    driving: Scene
    moment: float = 0.5
    num_frames: int = SEGMENT
    segment: int = 0
    slip: tuple[float, float, float] = (0.0, 0.0, 1.0)
    has_bars: bool = False

    @property
    def triple(self) -> tuple[str, str, str]:
        """Colour, shape and motion of the video that is to be made."""
        return self.picture.colour, self.picture.shape, self.driving.motion


def sample_pair(rng: random.Random, changing_share: float = 0.0, slips: tuple[float, float] = SLIPS) -> Pair:
    """A pair of which neither a scene nor the video is held out; in at least `changing_share` of all the driving shape grows or
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
    """How many segments a driving clip of so many frames takes."""
    return max(1, -(-(num_frames - 1) // (SEGMENT - 1)))


def frames_in_segments(num_frames: int) -> list[int]:
    """The numbers of the driving frames, the last ones once more from the end until whole segments are full: 0 1 2 3 3 2 1."""
    missing = num_segments(num_frames) * (SEGMENT - 1) + 1 - num_frames
    return [*range(num_frames), *range(num_frames - 1, num_frames - 1 - missing, -1)]


def picture_of(pair: Pair, size: Bucket) -> torch.Tensor:
    """[3, 1, H, W] in [-1, 1]."""
    return _drawn(pair.picture, *picture_place(pair, size), size)


def picture_place(pair: Pair, size: Bucket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centre x, centre y and radius in pixels of the picture's shape, each [1]."""
    moments = 101
    return tuple(
        value[round(pair.moment * (moments - 1))][None] for value in path(pair.picture, moments, size.width, size.height)
    )


def inner_size(pair: Pair, size: Bucket) -> tuple[int, int]:
    """Width and height of the driving clip between its bars: all, or four to three in a square, or a square in other forms."""
    width, height = size.width, size.height
    if not pair.has_bars:
        return width, height
    shorter = min(width, height)
    return (shorter, shorter) if width != height else (width, height * 3 // 4)


def driving_places(pair: Pair, size: Bucket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centre x, centre y and radius in pixels of the driving shape in all frames of all segments."""
    width, height = inner_size(pair, size)
    x, y, radius = path(pair.driving, pair.num_frames, width, height)
    order = frames_in_segments(pair.num_frames)
    return x[order] + (size.width - width) / 2, y[order] + (size.height - height) / 2, radius[order]


def true_places(pair: Pair, size: Bucket) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of the shape in the video that is to be made."""
    x, y, driving = driving_places(pair, size)
    shorter = min(size.width, size.height)
    radius = picture_place(pair, size)[2] * driving / driving[0]
    return x, y, radius.clamp(LEAST * shorter, MOST * shorter)


def driving_of(pair: Pair, size: Bucket) -> torch.Tensor:
    """The segment of the driving clip, [3, 17, H, W] in [-1, 1]."""
    return driving_clip(pair, size)[:, _frames_of(pair)]


def driving_clip(pair: Pair, size: Bucket) -> torch.Tensor:
    """The driving clip in all frames of all segments, [3, F, H, W] in [-1, 1]."""
    clip = _drawn(pair.driving, *driving_places(pair, size), size)
    width, height = inner_size(pair, size)
    left, top = (size.width - width) // 2, (size.height - height) // 2
    clip[..., :left], clip[..., left + width :] = -1, -1
    clip[..., :top, :], clip[..., top + height :, :] = -1, -1
    return clip


def video_of(pair: Pair, size: Bucket) -> torch.Tensor:
    """The segment of the video that is to be made, [3, 17, H, W] in [-1, 1]."""
    return whole_video(pair, size)[:, _frames_of(pair)]


def whole_video(pair: Pair, size: Bucket) -> torch.Tensor:
    """The video that is to be made in all frames of all segments, [3, F, H, W] in [-1, 1]."""
    return _drawn(pair.picture, *true_places(pair, size), size)


def carried_of(pair: Pair, size: Bucket) -> torch.Tensor | None:
    """What a later segment is given of the one before, [3, 17, H, W] in [-1, 1]: its last frame, then zeros. None for the first
    segment."""
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
