"""Finds what would fit if a preset does not: a larger slice, fewer frames, or a smaller size.

Sizes are estimated first: weights shrink with the slice, all else with slice and tokens. Each candidate of the estimate is then
compiled, and offered only if it fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from backend.chips import SLICES
from backend.contract.request import GenerationRequest
from backend.pipeline.candidates import TRIES, fewer_frames, share_of_tokens, smaller_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortage:
    """A request that does not fit: bytes on each of `num_devices` devices of `topology`, `weights` at rest, `needed` in all."""

    request: GenerationRequest
    topology: str
    num_devices: int
    weights: int
    needed: int
    capacity: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to change, and the bytes that are then needed on each device, as compiled."""

    topology: str
    width: int
    height: int
    num_frames: int
    hbm_bytes_per_device: int


Compiled = Callable[[str, GenerationRequest], int | None]
"""Bytes on each device for this request on this slice, or None if that does not fit either."""


def find_remedies(shortage: Shortage, compiled: Compiled) -> list[Remedy]:
    """At most one of each kind."""
    remedies = []
    for candidates in (_slices(shortage), _frames(shortage), _sizes(shortage)):
        for _, (topology, request) in zip(range(TRIES), candidates, strict=False):
            size = compiled(topology, request)
            if size is not None:
                remedies.append(
                    Remedy(
                        topology=topology,
                        width=request.width,
                        height=request.height,
                        num_frames=request.num_frames,
                        hbm_bytes_per_device=size,
                    )
                )
                break
    return remedies


def _slices(shortage: Shortage) -> Iterator[tuple[str, GenerationRequest]]:
    chip = shortage.topology.partition(":")[0]
    for shape, num_devices in SLICES[chip].items():
        if num_devices > shortage.num_devices and shortage.needed * shortage.num_devices / num_devices <= shortage.capacity:
            yield f"{chip}:{shape}", shortage.request


def _frames(shortage: Shortage) -> Iterator[tuple[str, GenerationRequest]]:
    for changed in fewer_frames(shortage.request, _share(shortage)):
        yield shortage.topology, changed


def _sizes(shortage: Shortage) -> Iterator[tuple[str, GenerationRequest]]:
    for changed in smaller_sizes(shortage.request, _share(shortage)):
        yield shortage.topology, changed


def _share(shortage: Shortage) -> float:
    """The share of the tokens that there is room for."""
    return share_of_tokens(weights=shortage.weights, needed=shortage.needed, capacity=shortage.capacity)
