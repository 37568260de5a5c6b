"""wan-tiny-vace's world: wan-tiny's scenes, and what of them is shown beforehand: edges, all around a box, the inner part, key
frames, one end, a reference picture of the shape, or nothing."""

from __future__ import annotations

import dataclasses
import random
from typing import Literal

import numpy as np
import torch

from backend.media.control import control_frame
from backend.media.source import GREY, Source
from training.latents import Bucket
from training.world import COLOURS, Scene, path, render, sample_training_scene, signed_distance

Use = Literal["edges", "box", "keyframes", "margins", "after", "before", "words", "reference"]
USES: dict[Use, float] = {
    "edges": 0.26, "box": 0.2, "keyframes": 0.18, "margins": 0.08, "after": 0.1, "before": 0.06, "words": 0.12,
}  # fmt: skip
"""Those without a reference picture, and their shares of the training."""
WITH_REFERENCE: dict[Use, float] = {"reference": 0.75, "after": 0.15, "keyframes": 0.05, "edges": 0.05}
"""Those with one, and their shares."""
REFERENCE_SHAPES = {"circle": 0.2, "square": 0.2, "triangle": 0.2, "star": 0.4}  # shares: a star is the last that is learned
REFERENCE_RADIUS = (0.24, 0.32)  # of the shape in a reference picture, as shares of its shorter side: it fills most of it
REFERENCE_SHIFT = 0.05  # how far from the middle it may lie, as a share of each side
OVERLAPS = (1, 5, 9)  # frames that are shown where a clip goes on
MARGINS = (0.03, 0.3)  # a margin's least and most, as shares of its side
REACH = 1.4  # how far a shape reaches from its centre, in radii: a star's tips are at 1.38
SPARE = (0.02, 0.12)  # around the shape in a box, as shares of the shorter side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A scene to be made from its prompt and from what is shown. `spare` is the room around the shape in a box, in shares of the
    shorter side; `has_middle` whether there is a key frame between the first and the last; `margins` are shares of the sides,
    left, top, right and bottom; `overlap` counts the frames of the clip that goes on. `reference` is where a reference picture
    shows the shape: x and y of its centre as shares of the sides, and its radius as a share of the shorter one; None without one.
    """

    scene: Scene
    use: Use
    spare: float = SPARE[0]
    has_middle: bool = False
    margins: tuple[float, float, float, float] = (MARGINS[1], 0.0, 0.0, 0.0)
    overlap: int = OVERLAPS[-1]
    reference: tuple[float, float, float] | None = None


def task_for(scene: Scene, use: Use, rng: random.Random) -> Task:
    """A task of this use with everything else random. In a box the shape is small, so that something is left around it."""
    scene = dataclasses.replace(scene, size="small") if use == "box" else scene
    left, top, right, bottom = (rng.uniform(*MARGINS) * (rng.random() < 0.7) for _ in range(4))
    margins = left, top, right, bottom
    return Task(
        scene=scene,
        use=use,
        spare=rng.uniform(*SPARE),
        has_middle=rng.random() < 0.5,
        margins=margins if any(margins) else Task.margins,
        overlap=rng.choice(OVERLAPS),
    )


def sample_task(rng: random.Random) -> Task:
    """A task whose scene is not held out."""
    return task_for(sample_training_scene(rng), rng.choices([*USES], weights=[*USES.values()])[0], rng)


def reference_task_for(scene: Scene, use: Use, rng: random.Random) -> Task:
    """A task of this use with a reference picture."""
    return dataclasses.replace(task_for(scene, use, rng), reference=sample_reference(rng))


def sample_reference(rng: random.Random) -> tuple[float, float, float]:
    """Where a reference picture shows its shape: see `Task`."""
    x, y = (0.5 + rng.uniform(-REFERENCE_SHIFT, REFERENCE_SHIFT) for _ in range(2))
    return x, y, rng.uniform(*REFERENCE_RADIUS)


def sample_reference_task(rng: random.Random) -> Task:
    """A task with a reference picture whose scene is not held out. Its shape is not white: nobody could see it on white."""
    shape = rng.choices([*REFERENCE_SHAPES], weights=[*REFERENCE_SHAPES.values()])[0]
    scene = sample_training_scene(rng)
    while scene.colour == "white" or scene.shape != shape:
        scene = sample_training_scene(rng)
    return reference_task_for(scene, rng.choices([*WITH_REFERENCE], weights=[*WITH_REFERENCE.values()])[0], rng)


def reference_of(task: Task, size: Bucket) -> np.ndarray:
    """The reference picture, the shape on white, uint8 [H, W, 3]."""
    assert task.reference is not None, "this task has no reference"
    x, y, radius = task.reference
    rows, columns = torch.meshgrid(torch.arange(size.height) + 0.5, torch.arange(size.width) + 0.5, indexing="ij")
    pixels = torch.tensor(radius * min(size.width, size.height))
    distance = signed_distance(task.scene.shape, columns - x * size.width, rows - y * size.height, pixels)
    cover = (0.5 - distance).clamp(0, 1)[..., None]
    return (255 + cover * (torch.tensor(COLOURS[task.scene.colour]) - 255)).round().byte().numpy()


def video_of(task: Task, size: Bucket) -> torch.Tensor:
    """The video that is to be made, [3, F, H, W] in [-1, 1]."""
    return render(task.scene, size.num_frames, size.width, size.height)


def keyframes_of(task: Task, num_frames: int) -> tuple[int, ...]:
    """The numbers of the frames that are shown."""
    return (0, num_frames // 2, num_frames - 1) if task.has_middle else (0, num_frames - 1)


def box_of(task: Task, size: Bucket) -> tuple[int, int, int, int]:
    """Left, top, right and bottom in pixels of the box that the shape does not leave."""
    x, y, radius = path(task.scene, size.num_frames, size.width, size.height)
    reach = REACH * radius + task.spare * min(size.width, size.height)
    left, top = (int((centre - reach).min().clamp(min=0)) for centre in (x, y))
    right = int((x + reach).max().clamp(max=size.width).ceil())
    bottom = int((y + reach).max().clamp(max=size.height).ceil())
    return left, top, right, bottom


def margins_of(task: Task, size: Bucket) -> tuple[int, int, int, int]:
    """Pixels on the left, at the top, on the right and at the bottom, even numbers as clips have."""
    sides = (size.width, size.height, size.width, size.height)
    left, top, right, bottom = (2 * round(share * side / 2) for share, side in zip(task.margins, sides, strict=True))
    return left, top, right, bottom


def inner_of(task: Task, size: Bucket) -> tuple[slice, slice]:
    """The rows and the columns that margins leave."""
    left, top, right, bottom = margins_of(task, size)
    return slice(top, size.height - bottom), slice(left, size.width - right)


def known_frames(task: Task, num_frames: int) -> list[int]:
    """The numbers of the frames that are shown whole; none where parts of all are."""
    if task.use == "keyframes":
        return list(keyframes_of(task, num_frames))
    if task.use == "after":
        return list(range(task.overlap))
    return list(range(num_frames - task.overlap, num_frames)) if task.use == "before" else []


def source_of(task: Task, size: Bucket) -> Source:
    """What the control blocks are shown, as the studio would put it together."""
    frames = to_frames(video_of(task, size))
    if task.use == "edges":
        drawn = np.stack([control_frame(frame, "edges") for frame in frames])
        return Source(frames=drawn, is_new=np.ones(frames.shape[:3], bool))
    is_new = np.ones(frames.shape[:3], bool)
    is_new[known_frames(task, size.num_frames)] = False
    if task.use == "margins":
        is_new[:, *inner_of(task, size)] = False
    elif task.use == "box":
        left, top, right, bottom = box_of(task, size)
        is_new[:] = False
        is_new[:, top:bottom, left:right] = True
    return Source(frames=np.where(is_new[..., None], np.uint8(GREY), frames), is_new=is_new)


def to_frames(video: torch.Tensor) -> np.ndarray:
    """uint8 [F, H, W, 3] of a video [3, F, H, W] in [-1, 1]."""
    return ((video.permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255).byte().numpy()
