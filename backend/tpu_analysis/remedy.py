"""Find changes that make a preset fit: a larger slice, fewer frames, or a smaller size.

The needed bytes are estimated first. Each device has fewer bytes of weights on a larger slice. All other bytes of a device shrink
on a larger slice or with fewer tokens. The candidates are then compiled. A candidate is suggested only if it fits.
"""

import dataclasses
from collections.abc import Callable
from itertools import repeat

from backend.chips import SLICES
from backend.pipeline.memory_suggestions import CAUTION, fewer_frames, find_first_fitting, smaller_sizes
from backend.schemas.request import GenerationRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortage:
    """A request that does not fit. `weights`, `needed` and `capacity` are bytes on each of `num_devices` devices.

    `needed` are all bytes that the request needs, including `weights`.
    """

    request: GenerationRequest
    topology: str
    num_devices: int
    weights: int
    needed: int
    capacity: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedy:
    """A slice and a size that fit, and the compiled bytes on each device."""

    topology: str
    width: int
    height: int
    num_frames: int
    hbm_bytes_per_device: int


Compiled = Callable[[str, GenerationRequest], int | None]
"""A function of (topology, request) that returns the compiled bytes on each device, or None if the request does not fit."""


def find_remedies(shortage: Shortage, compiled: Compiled) -> list[Remedy]:
    """Return at most three remedies: a larger slice, fewer frames, and a smaller size."""
    # The share of the request's tokens that fits. It is below 0 if the weights alone do not fit.
    share = CAUTION * (shortage.capacity - shortage.weights) / (shortage.needed - shortage.weights)
    chip, needed = shortage.topology.partition(":")[0], shortage.needed * shortage.num_devices
    larger_slices = (
        (f"{chip}:{shape}", shortage.request)
        for shape, num_devices in SLICES[chip].items()
        if num_devices > shortage.num_devices and needed / num_devices <= shortage.capacity
    )
    same_slice = (fewer_frames(shortage.request, share), smaller_sizes(shortage.request, share))
    kinds = (larger_slices, *(zip(repeat(shortage.topology), requests, strict=False) for requests in same_slice))
    remedies = []
    for candidates in kinds:
        if (found := find_first_fitting(candidates, lambda candidate: compiled(*candidate))) is not None:
            (topology, request), size = found
            sizes = {"width": request.width, "height": request.height, "num_frames": request.num_frames}
            remedies.append(Remedy(topology=topology, **sizes, hbm_bytes_per_device=size))
    return remedies
