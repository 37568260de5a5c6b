"""Whether this machine can run a model, judged by its devices and by figures that are kept as data. Compiles nothing."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backend.accelerators import MOST_FLOPS_ON_A_CPU
from backend.chips import DEVICE_KINDS, memory_bytes
from backend.models import find_family
from backend.schemas.request import example_request, find_preset
from backend.schemas.worker import Device
from presets import Preset
from presets.needs import Needs, SliceNeed, find_needs

Verdict = Literal["runs", "short", "slow", "untried", "unknown"]
"""`runs`: it does, or is predicted to. `short`: its weights alone take more than the devices have. `slow`: the machine has only
processors, and a step is too much for them. `untried`: nobody has looked at this slice or card. `unknown`: no devices yet."""


DEVICES_OF_A_CHIP = {"tpu7x": 2}  # jax's; one on all others


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """The verdict, the memory of all devices together in bytes, None if it is not known, and the smallest slice found to fit."""

    verdict: Verdict
    memory_bytes: int | None = None
    smallest: SliceNeed | None = None


def judge_compatibility(presets: Sequence[Preset], devices: Sequence[Device]) -> Compatibility:
    """The compatibility of a model that these presets use, on the devices of one worker."""
    needs = find_needs(presets[0].model)
    smallest = _smallest_slice(needs, devices)
    if not devices:
        return Compatibility(verdict="unknown", smallest=smallest)
    if min(step_flops(preset.name) for preset in presets) <= MOST_FLOPS_ON_A_CPU:
        return Compatibility(verdict="runs", smallest=smallest)
    if all(device.kind == "cpu" for device in devices):
        return Compatibility(verdict="slow", smallest=smallest)
    memory = _total_memory(devices)
    return Compatibility(verdict=_verdict(needs, devices, memory), memory_bytes=memory, smallest=smallest)


@functools.cache
def step_flops(name: str) -> float:
    """The arithmetic of one step of a video of this preset's own size."""
    preset = find_preset(name)
    family, _ = find_family(preset)
    request = example_request(preset)
    return family.step_flops(preset.network_configs(), request, request.num_branches).total


def _verdict(needs: Needs | None, devices: Sequence[Device], memory: int | None) -> Verdict:
    if needs is None or memory is None:
        return "untried"
    if needs.device_bytes > memory:
        return "short"
    return "runs" if any(_matches_slice(one, devices) for one in needs.slices) else "untried"


def _matches_slice(need: SliceNeed, devices: Sequence[Device]) -> bool:
    """Whether these are as many chips of the same kind, or more."""
    return DEVICE_KINDS.get(devices[0].kind) == _chip(need.slice) and len(devices) >= _num_devices(need.slice)


def _smallest_slice(needs: Needs | None, devices: Sequence[Device]) -> SliceNeed | None:
    """Of this machine's own chips if anything is known of them, else of any."""
    if needs is None or not needs.slices:
        return None
    chip = DEVICE_KINDS.get(devices[0].kind) if devices else None
    own = [one for one in needs.slices if _chip(one.slice) == chip]
    return min(own or needs.slices, key=lambda one: _num_devices(one.slice))


def _total_memory(devices: Sequence[Device]) -> int | None:
    known = [room for device in devices if (room := device.bytes_limit or memory_bytes(device.kind)) is not None]
    return sum(known) if len(known) == len(devices) else None


def _chip(shape: str) -> str:
    return shape.partition(":")[0]


def _num_devices(shape: str) -> int:
    chip, _, size = shape.partition(":")
    return math.prod(map(int, size.split("x"))) * DEVICES_OF_A_CHIP.get(chip, 1)
