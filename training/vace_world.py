"""wan-tiny-vace's world: wan-tiny's scenes with given inputs.

The inputs are edges, the area around a box, the inner part, keyframes, one end, a reference image of the shape, or nothing.
"""

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
"""The uses without a reference image, and their shares of the training."""
WITH_REFERENCE: dict[Use, float] = {"reference": 0.75, "after": 0.15, "keyframes": 0.05, "edges": 0.05}
"""The uses with a reference image, and their shares of the training."""
REFERENCE_SHAPES = {"circle": 0.2, "square": 0.2, "triangle": 0.2, "star": 0.4}  # shares; stars are learned last
REFERENCE_RADIUS = (0.24, 0.32)  # range of the shape's radius in a reference image, as shares of its shorter side
REFERENCE_SHIFT = 0.05  # largest distance from the middle, as a share of each side
OVERLAPS = (1, 5, 9)  # given frames where a clip is extended
MARGINS = (0.03, 0.3)  # smallest and largest margin, as shares of its side
REACH = 1.4  # extent of a shape from its centre in radii; a star's tips are at 1.38
SPARE = (0.02, 0.12)  # space around the shape in a box, as shares of the shorter side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A scene to generate from its prompt and given inputs.

    `spare` is the space around the shape in a box, as a share of the shorter side. `has_middle` is true if there is a keyframe
    between the first and the last. `margins` are left, top, right and bottom, as shares of the sides. `overlap` counts the given
    frames of an extended clip. `reference` is the shape's place in a reference image: x and y of its centre as shares of the
    sides, and its radius as a share of the shorter side. None without a reference image.
    """

    scene: Scene
    use: Use
    spare: float = SPARE[0]
    has_middle: bool = False
    margins: tuple[float, float, float, float] = (MARGINS[1], 0.0, 0.0, 0.0)
    overlap: int = OVERLAPS[-1]
    reference: tuple[float, float, float] | None = None


def task_for(scene: Scene, use: Use, rng: random.Random) -> Task:
    """Draw a task of this use. In a box the shape is small, so that some space is left around it."""
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
    """Draw a task whose scene is not held out."""
    return task_for(sample_training_scene(rng), rng.choices([*USES], weights=[*USES.values()])[0], rng)


def reference_task_for(scene: Scene, use: Use, rng: random.Random) -> Task:
    """Draw a task of this use with a reference image."""
    return dataclasses.replace(task_for(scene, use, rng), reference=sample_reference(rng))


def sample_reference(rng: random.Random) -> tuple[float, float, float]:
    """Draw the place of the shape in a reference image, as in `Task`."""
    x, y = (0.5 + rng.uniform(-REFERENCE_SHIFT, REFERENCE_SHIFT) for _ in range(2))
    return x, y, rng.uniform(*REFERENCE_RADIUS)


def sample_reference_task(rng: random.Random) -> Task:
    """Draw a task with a reference image whose scene is not held out. Its shape is not white, because the background is."""
    shape = rng.choices([*REFERENCE_SHAPES], weights=[*REFERENCE_SHAPES.values()])[0]
    scene = sample_training_scene(rng)
    while scene.colour == "white" or scene.shape != shape:
        scene = sample_training_scene(rng)
    return reference_task_for(scene, rng.choices([*WITH_REFERENCE], weights=[*WITH_REFERENCE.values()])[0], rng)


def reference_of(task: Task, size: Bucket) -> np.ndarray:
    """Draw the reference image, the shape on white, uint8 [H, W, 3]."""
    assert task.reference is not None, "this task has no reference"
    x, y, radius = task.reference
    rows, columns = torch.meshgrid(torch.arange(size.height) + 0.5, torch.arange(size.width) + 0.5, indexing="ij")
    pixels = torch.tensor(radius * min(size.width, size.height))
    distance = signed_distance(task.scene.shape, columns - x * size.width, rows - y * size.height, pixels)
    cover = (0.5 - distance).clamp(0, 1)[..., None]
    return (255 + cover * (torch.tensor(COLOURS[task.scene.colour]) - 255)).round().byte().numpy()


def video_of(task: Task, size: Bucket) -> torch.Tensor:
    """Draw the correct video, [3, F, H, W] in [-1, 1]."""
    return render(task.scene, size.num_frames, size.width, size.height)


def keyframes_of(task: Task, num_frames: int) -> tuple[int, ...]:
    """Return the indices of the keyframes."""
    return (0, num_frames // 2, num_frames - 1) if task.has_middle else (0, num_frames - 1)


def box_of(task: Task, size: Bucket) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom in pixels of the box around the shape's path."""
    x, y, radius = path(task.scene, size.num_frames, size.width, size.height)
    reach = REACH * radius + task.spare * min(size.width, size.height)
    left, top = (int((centre - reach).min().clamp(min=0)) for centre in (x, y))
    right = int((x + reach).max().clamp(max=size.width).ceil())
    bottom = int((y + reach).max().clamp(max=size.height).ceil())
    return left, top, right, bottom


def margins_of(task: Task, size: Bucket) -> tuple[int, int, int, int]:
    """Return the margins left, top, right and bottom in pixels, as even numbers."""
    sides = (size.width, size.height, size.width, size.height)
    left, top, right, bottom = (2 * round(share * side / 2) for share, side in zip(task.margins, sides, strict=True))
    return left, top, right, bottom


def inner_of(task: Task, size: Bucket) -> tuple[slice, slice]:
    """Return the rows and columns inside the margins."""
    left, top, right, bottom = margins_of(task, size)
    return slice(top, size.height - bottom), slice(left, size.width - right)


def known_frames(task: Task, num_frames: int) -> list[int]:
    """Return the indices of the frames that are given as a whole, none if parts of all frames are given."""
    if task.use == "keyframes":
        return list(keyframes_of(task, num_frames))
    if task.use == "after":
        return list(range(task.overlap))
    return list(range(num_frames - task.overlap, num_frames)) if task.use == "before" else []


def source_of(task: Task, size: Bucket) -> Source:
    """Assemble the inputs of the control blocks, as the studio does."""
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
    """Convert a video [3, F, H, W] in [-1, 1] to uint8 [F, H, W, 3]."""
    return ((video.permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255).byte().numpy()
