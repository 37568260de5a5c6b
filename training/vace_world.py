"""wan-tiny-vace's world: wan-tiny's scenes, and what of them is shown beforehand: edges, all around a box, or key frames."""

from __future__ import annotations

import dataclasses
import random
from typing import Literal

import numpy as np
import torch

from backend.media.control import control_frame
from backend.media.source import GREY, Source
from training.latents import Bucket
from training.world import Scene, path, render, sample_training_scene

Use = Literal["edges", "box", "keyframes"]
USES: tuple[Use, ...] = ("edges", "box", "keyframes")
REACH = 1.4  # how far a shape reaches from its centre, in radii: a star's tips are at 1.38
SPARE = (0.02, 0.12)  # around the shape in a box, as shares of the shorter side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A scene to be made from its prompt and from what is shown. `spare` is the room around the shape in a box, in shares of the
    shorter side; `has_middle` whether there is a key frame between the first and the last."""

    scene: Scene
    use: Use
    spare: float = SPARE[0]
    has_middle: bool = False


def task_for(scene: Scene, use: Use, rng: random.Random) -> Task:
    """A task of this use with everything else random. In a box the shape is small, so that something is left around it."""
    scene = dataclasses.replace(scene, size="small") if use == "box" else scene
    return Task(scene=scene, use=use, spare=rng.uniform(*SPARE), has_middle=rng.random() < 0.5)


def sample_task(rng: random.Random) -> Task:
    """A task whose scene is not held out."""
    return task_for(sample_training_scene(rng), rng.choice(USES), rng)


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


def source_of(task: Task, size: Bucket) -> Source:
    """What the control blocks are shown, as the studio would put it together."""
    frames = to_frames(video_of(task, size))
    if task.use == "edges":
        drawn = np.stack([control_frame(frame, "edges") for frame in frames])
        return Source(frames=drawn, is_new=np.ones(frames.shape[:3], bool))
    is_new = np.ones(frames.shape[:3], bool)
    if task.use == "keyframes":
        is_new[list(keyframes_of(task, size.num_frames))] = False
    else:
        left, top, right, bottom = box_of(task, size)
        is_new = np.zeros(frames.shape[:3], bool)
        is_new[:, top:bottom, left:right] = True
    return Source(frames=np.where(is_new[..., None], np.uint8(GREY), frames), is_new=is_new)


def to_frames(video: torch.Tensor) -> np.ndarray:
    """uint8 [F, H, W, 3] of a video [3, F, H, W] in [-1, 1]."""
    return ((video.permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255).byte().numpy()
