"""Detect colour, shape, motion, speed and background in a video of the synthetic world, without a learned part."""

from __future__ import annotations

import dataclasses
import math

import torch

from training.world import BACKGROUNDS, COLOURS, DIRECTIONS, SHAPES, SPEEDS, signed_distance

MIN_CONTRAST = 40.0  # distance in 8-bit RGB; smaller differences from the background are ignored
MIN_TRAVEL = 0.14  # share of the shorter side; the slowest motion of the world is 0.2
FAST_TRAVEL = (SPEEDS["SLOW"][1] + SPEEDS["FAST"][0]) / 2  # share of the shorter side, halfway between the two speeds
MIN_GROWTH = 1.4  # ratio of radii; 2.4 in the world
AREA = {
    "circle": math.pi,
    "square": 3.24,
    "triangle": 3 * math.sqrt(3) * 0.68**2,
    "star": 10 * 0.5 * 1.38 * 0.6 * math.sin(math.pi / 5),
}
"""Area of each of `world`'s shapes at radius 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection:
    """The properties of a video, None if not detected."""

    colour: str | None
    shape: str | None
    motion: str | None
    background: str | None
    speed: str | None = None  # only for a moving shape


def detect(video: torch.Tensor) -> Detection:
    """Detect the properties of a video [F, H, W, 3] of 8-bit values."""
    pixels = video.float()
    backdrop = _border(pixels).median(0).values
    background = _nearest(backdrop, BACKGROUNDS)
    foreground = _foreground_colour(pixels, backdrop)
    if foreground is None:
        return Detection(colour=None, shape=None, motion=None, background=background)
    cover = _cover(pixels, backdrop, foreground)
    motion, speed = _motion(cover)
    colour = _nearest(foreground, COLOURS)
    return Detection(colour=colour, shape=_shape(cover), motion=motion, background=background, speed=speed)


def positions(video: torch.Tensor) -> torch.Tensor:
    """Return the shape's position and size in every frame, [F, 3], of a video [F, H, W, 3] with constant colours.

    They are centre x and y as shares of width and height, and the radius of a circle with the shape's area as a share of the
    shorter side. Raises: ValueError if nothing differs from the background.
    """
    cover = cover_of(video)
    if cover is None:
        raise ValueError("nothing differs from the background")
    area, x, y = _moments(cover)
    height, width = video.shape[1:3]
    return torch.stack([x / width, y / height, (area / math.pi).sqrt() / min(width, height)], 1)


def cover_of(video: torch.Tensor) -> torch.Tensor | None:
    """Return the shape's coverage of each pixel, [F, H, W] in [0, 1], for a video [F, H, W, 3] with constant colours.

    None if nothing differs from the background.
    """
    pixels = video.float()
    backdrop = _border(pixels).median(0).values
    foreground = _foreground_colour(pixels, backdrop)
    return None if foreground is None else _cover(pixels, backdrop, foreground)


def _border(pixels: torch.Tensor) -> torch.Tensor:
    edges = (pixels[:, :2], pixels[:, -2:], pixels[:, :, :2], pixels[:, :, -2:])
    return torch.cat([edge.reshape(-1, 3) for edge in edges])


def _nearest(colour: torch.Tensor, palette: dict[str, tuple[int, int, int]]) -> str:
    return min(palette, key=lambda name: (colour - torch.tensor(palette[name])).norm().item())


def _foreground_colour(pixels: torch.Tensor, backdrop: torch.Tensor) -> torch.Tensor | None:
    """Return the median colour of the pixels that differ most from the background."""
    distance = (pixels - backdrop).norm(dim=-1)
    peak = distance.flatten().sort().values[-max(20, distance.numel() // 500)]
    if peak < MIN_CONTRAST:
        return None
    return pixels[distance >= 0.85 * peak].median(0).values


def _cover(pixels: torch.Tensor, backdrop: torch.Tensor, foreground: torch.Tensor) -> torch.Tensor:
    """Return the shape's coverage of each pixel, [F, H, W] in [0, 1]."""
    axis = foreground - backdrop
    cover = ((pixels - backdrop) @ axis / axis.square().sum()).clamp(0, 1)
    return torch.where(cover > 0.3, cover, 0.0)


def _moments(cover: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the area in pixels and the centroid x and y of every frame, each [F]."""
    _, height, width = cover.shape
    area = cover.sum((1, 2)).clamp(min=1e-3)
    x = (cover.sum(1) @ (torch.arange(width) + 0.5)) / area
    y = (cover.sum(2) @ (torch.arange(height) + 0.5)) / area
    return area, x, y


def _motion(cover: torch.Tensor) -> tuple[str | None, str | None]:
    """Return the motion, and the speed if the shape moves."""
    area, x, y = _moments(cover)
    is_visible = area > 12
    if is_visible.sum() < max(3, len(area) // 2):
        return None, None
    span = len(area) - 1
    shorter = min(cover.shape[1:])
    move_x, move_y = _slope(x, is_visible) * span / shorter, _slope(y, is_visible) * span / shorter
    growth = math.exp(_slope(area.log() / 2, is_visible) * span)
    if (travel := math.hypot(move_x, move_y)) >= MIN_TRAVEL:
        motion = max(DIRECTIONS, key=lambda name: DIRECTIONS[name][0] * move_x + DIRECTIONS[name][1] * move_y)
        return motion, "FAST" if travel >= FAST_TRAVEL else "SLOW"
    if max(growth, 1 / growth) >= MIN_GROWTH:
        return "growing" if growth > 1 else "shrinking", None
    return "still", None


def _slope(values: torch.Tensor, is_visible: torch.Tensor) -> float:
    """Return the least-squares change of the values per frame."""
    frames = torch.arange(len(values), dtype=torch.float32)[is_visible]
    centred = frames - frames.mean()
    return float((centred * values[is_visible]).sum() / centred.square().sum())


def _shape(cover: torch.Tensor) -> str | None:
    """Return the shape whose outline overlaps the frames best, drawn at each frame's centroid with each frame's area."""
    area, x, y = _moments(cover)
    edge = cover[:, [0, -1]].amax((1, 2)) + cover[:, :, [0, -1]].amax((1, 2))
    chosen = (area > 12) & (edge < 0.5)
    if not chosen.any():
        chosen = area > 12
    if not chosen.any():
        return None
    return max(SHAPES, key=lambda shape: _overlap(shape, cover[chosen], area[chosen], x[chosen], y[chosen]))


def _overlap(shape: str, cover, area, x, y) -> float:
    """Return the mean intersection over union of the frames with the drawn shape."""
    _, height, width = cover.shape
    rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    radius = (area / AREA[shape]).sqrt()[:, None, None]
    distance = signed_distance(shape, columns - x[:, None, None], rows - y[:, None, None], radius)
    drawn = (0.5 - distance).clamp(0, 1)
    return float((torch.minimum(drawn, cover).sum((1, 2)) / torch.maximum(drawn, cover).sum((1, 2))).mean())
