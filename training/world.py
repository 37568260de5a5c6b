"""The demo models' world: one coloured shape that moves on a plain background.

A `Scene` describes a video. `render` draws the video, `prompts.describe` writes the scene in varied English, and `sample_scene`
draws a random scene. Ten per cent of the (colour, shape, motion) triples are held out of training for the evaluation.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import torch

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 40, 40),
    "green": (50, 195, 75),
    "blue": (60, 105, 245),
    "yellow": (242, 218, 50),
    "cyan": (55, 212, 228),
    "magenta": (218, 60, 208),
    "orange": (246, 138, 30),
    "white": (246, 246, 246),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "black": (8, 8, 8),
    "grey": (122, 122, 122),
    "navy": (14, 20, 82),
    "dark green": (10, 68, 32),
}
SHAPES = ("circle", "square", "triangle", "star")
SIZES: dict[str, float] = {"small": 0.14, "large": 0.21}  # radius as a share of the shorter side
DIRECTIONS: dict[str, tuple[float, float]] = {  # x to the right, y downwards
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
    "up": (0.0, -1.0),
    "down": (0.0, 1.0),
    "up-left": (-math.sqrt(0.5), -math.sqrt(0.5)),
    "up-right": (math.sqrt(0.5), -math.sqrt(0.5)),
    "down-left": (-math.sqrt(0.5), math.sqrt(0.5)),
    "down-right": (math.sqrt(0.5), math.sqrt(0.5)),
}
MOTIONS = (*DIRECTIONS, "still", "growing", "shrinking")
TRAVEL = (0.32, 0.62)  # range of a moving shape's distance without a speed, as a share of the shorter side
SPEEDS: dict[str, tuple[float, float]] = {"SLOW": (0.2, 0.3), "FAST": (0.52, 0.62)}  # range of the distance for each speed
GROWTH = 2.4  # ratio of the radii at the two ends of a growing or shrinking clip
SILENT_SHARE = 0.15  # share of silent scenes in a world with audio
MARGIN = 0.18  # smallest distance of a centre from an edge, as a share of that side
HELD_OUT_SHARE = 0.1
HELD_OUT_SEED = 20240229


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """The content of a video.

    Positions are shares of width and height, and `travel` is a share of the shorter side. `speed` is one of `SPEEDS`, None
    without a speed. `training.hum` computes the audio.
    """

    colour: str
    shape: str
    motion: str
    background: str
    size: str
    start: tuple[float, float]
    travel: float
    speed: str | None = None
    is_silent: bool = False

    @property
    def triple(self) -> tuple[str, str, str]:
        return self.colour, self.shape, self.motion


def held_out_triples() -> frozenset[tuple[str, str, str]]:
    """Return the (colour, shape, motion) triples that are held out of training, a fixed tenth of all."""
    triples = list(itertools.product(COLOURS, SHAPES, MOTIONS))
    random.Random(HELD_OUT_SEED).shuffle(triples)
    return frozenset(triples[: round(len(triples) * HELD_OUT_SHARE)])


def sample_scene(rng: random.Random, triple: tuple[str, str, str], speed: str | None = None) -> Scene:
    """Draw a scene of the given triple and speed. The centre never leaves the frame."""
    colour, shape, motion = triple
    travel = rng.uniform(*SPEEDS.get(speed, TRAVEL))
    direction = DIRECTIONS.get(motion, (0.0, 0.0))
    across, down = (_start_along(rng, component * travel) for component in direction)
    start = across, down
    return Scene(
        colour=colour,
        shape=shape,
        motion=motion,
        background=rng.choice(tuple(BACKGROUNDS)),
        size=rng.choice(tuple(SIZES)),
        start=start,
        travel=travel,
        speed=speed,
    )


def sample_speed(rng: random.Random, motion: str) -> str | None:
    """Draw a speed for two thirds of the moving shapes, None for others."""
    return rng.choice((None, *SPEEDS)) if motion in DIRECTIONS else None


def _start_along(rng: random.Random, displacement: float) -> float:
    margin = MARGIN if displacement else 0.25
    return rng.uniform(margin + max(0.0, -displacement), 1 - margin - max(0.0, displacement))


def sample_training_scene(rng: random.Random, has_speed: bool = False, has_sound: bool = False) -> Scene:
    """Draw a scene whose triple is not held out. With `has_speed` many moving shapes have a speed, and with `has_sound` some
    scenes are silent."""
    held_out = held_out_triples()
    while True:
        triple = (rng.choice(tuple(COLOURS)), rng.choice(SHAPES), rng.choice(MOTIONS))
        if triple not in held_out:
            scene = sample_scene(rng, triple, sample_speed(rng, triple[2]) if has_speed else None)
            return dataclasses.replace(scene, is_silent=has_sound and rng.random() < SILENT_SHARE)


def path(scene: Scene, num_frames: int, width: int, height: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return centre x, centre y and radius in pixels, each [F]."""
    progress = torch.linspace(0, 1, num_frames)
    shorter = min(width, height)
    direction = DIRECTIONS.get(scene.motion, (0.0, 0.0))
    centre_x = scene.start[0] * width + progress * direction[0] * scene.travel * shorter
    centre_y = scene.start[1] * height + progress * direction[1] * scene.travel * shorter
    exponent = {"growing": progress - 0.5, "shrinking": 0.5 - progress}.get(scene.motion, torch.zeros(num_frames))
    radius = SIZES[scene.size] * shorter * GROWTH**exponent
    return centre_x, centre_y, radius


def signed_distance(shape: str, x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Return the distance in pixels from a shape's outline around the origin, negative inside and exact at the edges."""
    distance = torch.hypot(x, y)
    if shape == "circle":
        return distance - radius
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.9 * radius
    angle = torch.atan2(x, -y)  # angle 0 is up
    if shape == "triangle":
        sector = 2 * math.pi / 3
        folded = torch.remainder(angle, sector) - sector / 2
        return distance * torch.cos(folded) - 0.68 * radius
    sector = 2 * math.pi / 5
    folded = torch.abs(torch.remainder(angle + sector / 2, sector) - sector / 2)
    return _star_edge(distance, folded, 1.38 * radius, 0.6 * radius, sector / 2)


def _star_edge(distance, folded, outer, inner, half_sector: float) -> torch.Tensor:
    """Return the signed distance to the line from a tip (angle 0) to the next notch (angle `half_sector`)."""
    notch_x, notch_y = inner * math.cos(half_sector), inner * math.sin(half_sector)
    normal_x, normal_y = notch_y, outer - notch_x
    length = torch.hypot(normal_x, normal_y)
    along_x, along_y = distance * torch.cos(folded), distance * torch.sin(folded)
    return (normal_x * (along_x - outer) + normal_y * along_y) / length


def render(scene: Scene, num_frames: int, width: int, height: int) -> torch.Tensor:
    """Draw the scene's video, [C, F, H, W] float32 in [-1, 1]."""
    return draw(scene.shape, scene.colour, scene.background, *path(scene, num_frames, width, height), width, height)


def draw(
    shape: str,
    colour: str,
    background: str,
    centre_x: torch.Tensor,
    centre_y: torch.Tensor,
    radius: torch.Tensor,
    width: int,
    height: int,
) -> torch.Tensor:
    """Draw a shape with centres and radii [F] in pixels: [C, F, H, W] float32 in [-1, 1], anti-aliased over one pixel."""
    centre_x, centre_y, radius = (value[:, None, None] for value in (centre_x, centre_y, radius))
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    cover = (0.5 - signed_distance(shape, x - centre_x, y - centre_y, radius)).clamp(0, 1)[None]
    inside = torch.tensor(COLOURS[colour]).view(3, 1, 1, 1) / 127.5 - 1
    outside = torch.tensor(BACKGROUNDS[background]).view(3, 1, 1, 1) / 127.5 - 1
    return outside + cover * (inside - outside)
