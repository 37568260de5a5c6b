"""Find changes that make a preset fit: a larger slice, fewer frames, or a smaller size.

The needed bytes are estimated first. Each device has fewer bytes of weights on a larger slice. All other bytes of a device shrink
on a larger slice or with fewer tokens. The candidates are then compiled. A candidate is suggested only if it fits.
"""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import repeat

from backend.chips import SLICES
from backend.pipeline.memory_candidates import fewer_frames, find_first_fitting, fitting_share_of_tokens, smaller_sizes
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
    share = fitting_share_of_tokens(weights=shortage.weights, needed=shortage.needed, capacity=shortage.capacity)
    same_slice = (fewer_frames(shortage.request, share), smaller_sizes(shortage.request, share))
    kinds = (_larger_slices(shortage), *(zip(repeat(shortage.topology), requests, strict=False) for requests in same_slice))
    fitting = filter(None, (find_first_fitting(candidates, lambda candidate: compiled(*candidate)) for candidates in kinds))
    return [_make_remedy(topology, request, size) for (topology, request), size in fitting]


def _make_remedy(topology: str, request: GenerationRequest, size: int) -> Remedy:
    width, height, num_frames = request.width, request.height, request.num_frames
    return Remedy(topology=topology, width=width, height=height, num_frames=num_frames, hbm_bytes_per_device=size)


def _larger_slices(shortage: Shortage) -> Iterator[tuple[str, GenerationRequest]]:
    chip = shortage.topology.partition(":")[0]
    for shape, num_devices in SLICES[chip].items():
        if num_devices > shortage.num_devices and shortage.needed * shortage.num_devices / num_devices <= shortage.capacity:
            yield f"{chip}:{shape}", shortage.request
