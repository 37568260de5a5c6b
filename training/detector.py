"""Reads colour, shape, motion, speed and background back from a video of the synthetic world, without any learned part."""

from __future__ import annotations

import dataclasses
import math

import torch

from training.world import BACKGROUNDS, COLOURS, DIRECTIONS, SHAPES, SPEEDS, signed_distance

MIN_CONTRAST = 40.0  # distance in 8-bit RGB below which nothing stands out from the background
MIN_TRAVEL = 0.14  # share of the shorter side; the world's slowest motion travels 0.2
FAST_TRAVEL = (SPEEDS["SLOW"][1] + SPEEDS["FAST"][0]) / 2  # the same; halfway between the two speeds
MIN_GROWTH = 1.4  # ratio of radii; the world's is 2.4
AREA = {
    "circle": math.pi,
    "square": 3.24,
    "triangle": 3 * math.sqrt(3) * 0.68**2,
    "star": 10 * 0.5 * 1.38 * 0.6 * math.sin(math.pi / 5),
}
"""Area of each of `world`'s shapes at radius 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection:
    """What a video shows; None for what could not be detected."""

    colour: str | None
    shape: str | None
    motion: str | None
    background: str | None
    speed: str | None = None  # of a shape that moves


def detect(video: torch.Tensor) -> Detection:
    """Read a video [F, H, W, 3], 8-bit values."""
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
    """Centre x and y as shares of width and height, and the radius of a circle of the shape's area as a share of the shorter
    side, for every frame of a video [F, H, W, 3] whose colours stay: [F, 3]. Raises: ValueError if nothing stands out."""
    cover = cover_of(video)
    if cover is None:
        raise ValueError("nothing stands out from the background")
    area, x, y = _moments(cover)
    height, width = video.shape[1:3]
    return torch.stack([x / width, y / height, (area / math.pi).sqrt() / min(width, height)], 1)


def cover_of(video: torch.Tensor) -> torch.Tensor | None:
    """How much of each pixel the shape covers, [F, H, W] in [0, 1], in a video [F, H, W, 3] whose colours stay; None if nothing
    stands out."""
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
    """Median colour of the pixels that differ most from the background."""
    distance = (pixels - backdrop).norm(dim=-1)
    peak = distance.flatten().sort().values[-max(20, distance.numel() // 500)]
    if peak < MIN_CONTRAST:
        return None
    return pixels[distance >= 0.85 * peak].median(0).values


def _cover(pixels: torch.Tensor, backdrop: torch.Tensor, foreground: torch.Tensor) -> torch.Tensor:
    """How much of each pixel the shape covers, [F, H, W] in [0, 1]."""
    axis = foreground - backdrop
    cover = ((pixels - backdrop) @ axis / axis.square().sum()).clamp(0, 1)
    return torch.where(cover > 0.3, cover, 0.0)


def _moments(cover: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Area in pixels and centroid x, y of every frame, each [F]."""
    _, height, width = cover.shape
    area = cover.sum((1, 2)).clamp(min=1e-3)
    x = (cover.sum(1) @ (torch.arange(width) + 0.5)) / area
    y = (cover.sum(2) @ (torch.arange(height) + 0.5)) / area
    return area, x, y


def _motion(cover: torch.Tensor) -> tuple[str | None, str | None]:
    """The motion, and the speed if the shape moves."""
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
    """Least-squares change of the values a frame."""
    frames = torch.arange(len(values), dtype=torch.float32)[is_visible]
    centred = frames - frames.mean()
    return float((centred * values[is_visible]).sum() / centred.square().sum())


def _shape(cover: torch.Tensor) -> str | None:
    """The shape whose outline, drawn at each frame's centroid with each frame's area, overlaps the frames best."""
    area, x, y = _moments(cover)
    edge = cover[:, [0, -1]].amax((1, 2)) + cover[:, :, [0, -1]].amax((1, 2))
    chosen = (area > 12) & (edge < 0.5)
    if not chosen.any():
        chosen = area > 12
    if not chosen.any():
        return None
    return max(SHAPES, key=lambda shape: _overlap(shape, cover[chosen], area[chosen], x[chosen], y[chosen]))


def _overlap(shape: str, cover, area, x, y) -> float:
    """Mean intersection over union of the frames with the drawn shape."""
    _, height, width = cover.shape
    rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    radius = (area / AREA[shape]).sqrt()[:, None, None]
    distance = signed_distance(shape, columns - x[:, None, None], rows - y[:, None, None], radius)
    drawn = (0.5 - distance).clamp(0, 1)
    return float((torch.minimum(drawn, cover).sum((1, 2)) / torch.maximum(drawn, cover).sum((1, 2))).mean())
