"""wan-live-tiny's world: a coloured shape that follows actions, block by block, and changes its look with a new prompt."""

from __future__ import annotations

import dataclasses
import functools
import random

import torch

from training.world import BACKGROUNDS, COLOURS, HELD_OUT_SEED, HELD_OUT_SHARE, SHAPES, SIZES, Scene, draw

ACTIONS = {  # per block: change of x and y as shares of the width and height, and the factor of the radius
    "left": (-0.08, 0.0, 1.0),
    "right": (0.08, 0.0, 1.0),
    "up": (0.0, -0.08, 1.0),
    "down": (0.0, 0.08, 1.0),
    "grow": (0.0, 0.0, 1.12),
    "shrink": (0.0, 0.0, 1 / 1.12),
    "stay": (0.0, 0.0, 1.0),
}
BLOCK_FRAMES = 4  # one latent frame; the first block has a single frame without an action
CENTRE = (0.5, 0.5)
NEAREST, FARTHEST = 0.2, 0.8  # range of the centre, as shares of width and height
RADII = (0.1, 0.26)  # shares of the shorter side
RADIUS = sum(SIZES.values()) / 2  # radius of a new shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """The look of a shape, as its prompt describes it."""

    colour: str
    shape: str
    background: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Story:
    """A video of `len(actions) + 1` blocks.

    `looks` has the look of each block, `actions` the action of each block after the first. `start` and `radius` are the position
    and radius in the first frame.
    """

    looks: tuple[Look, ...]
    actions: tuple[str, ...]
    start: tuple[float, float] = CENTRE
    radius: float = RADIUS

    @property
    def num_frames(self) -> int:
        return 1 + BLOCK_FRAMES * len(self.actions)


@functools.cache
def held_out_looks() -> frozenset[Look]:
    """Return the looks that are held out of training, a tenth of all."""
    looks = [Look(colour=colour, shape=shape, background=on) for colour in COLOURS for shape in SHAPES for on in BACKGROUNDS]
    random.Random(HELD_OUT_SEED).shuffle(looks)
    return frozenset(looks[: round(len(looks) * HELD_OUT_SHARE)])


def sample_look(rng: random.Random) -> Look:
    """Draw a look that is not held out."""
    held_out = held_out_looks()
    while True:
        look = Look(colour=rng.choice(tuple(COLOURS)), shape=rng.choice(SHAPES), background=rng.choice(tuple(BACKGROUNDS)))
        if look not in held_out:
            return look


def sample_actions(rng: random.Random, blocks: int, longest: int = 8) -> tuple[str, ...]:
    """Draw actions. Each lasts from one block to `longest` blocks."""
    actions: list[str] = []
    while len(actions) < blocks:
        actions += [rng.choice(tuple(ACTIONS))] * rng.randint(1, longest)
    return tuple(actions[:blocks])


def sample_story(rng: random.Random, blocks: int) -> Story:
    """Draw a story that starts anywhere, or like a new video. In half of the stories the prompt changes once."""
    first, second = sample_look(rng), sample_look(rng)
    change = rng.randint(1, blocks - 1) if rng.random() < 0.5 else blocks
    begins = rng.random() < 0.5
    return Story(
        looks=(first,) * change + (second,) * (blocks - change),
        actions=sample_actions(rng, blocks - 1),
        start=CENTRE if begins else (rng.uniform(NEAREST, FARTHEST), rng.uniform(NEAREST, FARTHEST)),
        radius=RADIUS if begins else rng.uniform(*RADII),
    )


def path(story: Story) -> list[tuple[float, float, float]]:
    """Return centre x, centre y and radius of every frame as shares. Within a block they change evenly."""
    x, y = story.start
    radius, states = story.radius, [(x, y, story.radius)]
    for action in story.actions:
        across, down, factor = ACTIONS[action]
        ends = (
            min(max(x + across, NEAREST), FARTHEST),
            min(max(y + down, NEAREST), FARTHEST),
            min(max(radius * factor, RADII[0]), RADII[1]),
        )
        for frame in range(1, BLOCK_FRAMES + 1):
            share = frame / BLOCK_FRAMES
            states.append(tuple(a + share * (b - a) for a, b in zip((x, y, radius), ends, strict=True)))
        x, y, radius = ends
    return states


def render_story(story: Story, width: int, height: int) -> torch.Tensor:
    """Draw the story's video, [C, F, H, W] float32 in [-1, 1]."""
    frames = []
    for number, (x, y, radius) in enumerate(path(story)):
        look = story.looks[(number + BLOCK_FRAMES - 1) // BLOCK_FRAMES]
        place = torch.tensor([[x * width], [y * height], [radius * min(width, height)]])
        frames.append(draw(look.shape, look.colour, look.background, *place, width, height))
    return torch.cat(frames, dim=1)


def scene_of(look: Look) -> Scene:
    """Return a scene with this look, from which a prompt can be written."""
    return Scene(
        colour=look.colour,
        shape=look.shape,
        motion="still",
        background=look.background,
        size="small",
        start=CENTRE,
        travel=0.0,
    )
