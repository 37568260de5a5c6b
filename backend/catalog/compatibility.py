"""Estimate which models this machine can run, from its devices and the slices in `presets/needs.json`. Compiles nothing."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from backend.accelerators import MOST_FLOPS_ON_A_CPU
from backend.chips import DEVICE_KINDS, GIB, memory_bytes
from backend.models import find_family
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.schemas.worker import Device
from presets import Preset, list_presets
from presets.loader import Task
from presets.needs import SliceNeed, find_needs

Verdict = Literal["runs", "short", "slow", "untried", "unknown"]
"""The result of the estimate.

- "runs": the model runs on such devices, or is predicted to run.
- "short": the weights alone need more memory than the devices have.
- "slow": the machine has only CPUs, which are too slow for a step.
- "untried": no figures exist for this model on these devices.
- "unknown": the devices are not known yet.
"""


DEVICES_OF_A_CHIP = {"tpu7x": 2}  # number of jax devices per chip; a chip that is not listed is one device
# A recommended preset needs at most this share of a device's memory. The predictions are not measured, so some memory stays free.
RECOMMENDED_SHARE = 0.95
EQUAL_SIZE = 0.95  # networks with at least this share of the largest size count as equally large


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """The verdict, the memory of all devices together if it is known, and the smallest known slice on which the model fits."""

    verdict: Verdict
    memory_bytes: int | None = None
    smallest: SliceNeed | None = None


def judge_compatibility(presets: Sequence[Preset], devices: Sequence[Device]) -> Compatibility:
    """Judge whether the devices of one worker can run the model of these presets."""
    needs = find_needs(presets[0].model)
    smallest = None
    if needs is not None and needs.slices:  # prefer slices of this machine's kind of chip
        kind = DEVICE_KINDS.get(devices[0].kind) if devices else None
        own = [one for one in needs.slices if _chip_name(one.slice) == kind]
        smallest = min(own or needs.slices, key=lambda one: _num_devices(one.slice))
    if not devices:
        return Compatibility(verdict="unknown", smallest=smallest)
    if min(step_flops(preset.name) for preset in presets) <= MOST_FLOPS_ON_A_CPU:
        return Compatibility(verdict="runs", smallest=smallest)
    if all(device.kind == "cpu" for device in devices):
        return Compatibility(verdict="slow", smallest=smallest)
    known = [size for device in devices if (size := device.bytes_limit or memory_bytes(device.kind)) is not None]
    memory = sum(known) if len(known) == len(devices) else None
    verdict: Verdict = "untried"
    if needs is not None and memory is not None:
        chip = DEVICE_KINDS.get(devices[0].kind)
        fits = any(chip == _chip_name(one.slice) and len(devices) >= _num_devices(one.slice) for one in needs.slices)
        verdict = "short" if needs.device_bytes > memory else "runs" if fits else "untried"
    return Compatibility(verdict=verdict, memory_bytes=memory, smallest=smallest)


def recommend_preset(
    devices: Sequence[Device], can_use: Callable[[Preset], bool] = lambda preset: True, task: Task = "t2v"
) -> tuple[Preset, SliceNeed | None]:
    """Return the best of the `fitting_presets` and its predicted needs. If no preset fits, return the demo model and None.

    The best preset has the largest networks, then the largest video, then the shortest predicted time. Networks of nearly the
    largest size count as equally large, because sparse attention adds a few weights.
    """
    fitting = fitting_presets(devices, can_use, task)
    if not fitting:
        return list_presets()[0], None
    needs = [find_needs(preset.model) for preset, _ in fitting]
    sizes = [one.device_bytes if one else 0 for one in needs]
    large = [pair for pair, size in zip(fitting, sizes, strict=True) if size >= EQUAL_SIZE * max(sizes)]
    return max(large, key=lambda pair: (_num_pixels(pair[0]), -denoising_seconds(*pair)))


def fitting_presets(
    devices: Sequence[Device], can_use: Callable[[Preset], bool] = lambda preset: True, task: Task = "t2v"
) -> list[tuple[Preset, SliceNeed]]:
    """Return the presets that are predicted to fit, each with its needs on the largest slice with at most as many devices.

    Live presets and presets that need more inputs than the task are excluded. Figures of other chips are used only if no preset
    has figures for the chips of this machine (`is_estimate`).
    """
    plain = [
        one
        for one in list_presets()
        if task in one.tasks
        and not (one.live or one.has_control_blocks or one.segment_frames or one.needs_last_image)
        and can_use(one)
    ]
    for same_chip in (True, False):
        if fitting := [(one, need) for one in plain if (need := _largest_fitting(one, devices, same_chip=same_chip))]:
            return fitting
    return []


def find_faster_preset(best: Preset, fitting: Sequence[tuple[Preset, SliceNeed]]) -> tuple[Preset, SliceNeed] | None:
    """Return the fastest of the `fitting_presets` with videos of at least the size of `best`. None if `best` is the fastest."""
    large = [(preset, need) for preset, need in fitting if _num_pixels(preset) >= _num_pixels(best)]
    fastest = min(large, key=lambda pair: denoising_seconds(*pair), default=None)
    return None if fastest is None or fastest[0] == best else fastest


def is_estimate(need: SliceNeed, devices: Sequence[Device]) -> bool:
    """Return whether the needs are predictions for another chip than these devices."""
    return _chip_name(need.slice) != DEVICE_KINDS.get(devices[0].kind)


def denoising_seconds(preset: Preset, need: SliceNeed) -> float:
    """Return the predicted seconds of all denoising steps of a video with the preset's default settings."""
    return preset.steps * need.step_seconds


def _largest_fitting(preset: Preset, devices: Sequence[Device], *, same_chip: bool) -> SliceNeed | None:
    """Return the preset's needs on the largest slice in these devices on which it fits. None without such a slice."""
    needs = find_needs(preset.model)
    if needs is None or not devices or devices[0].kind == "cpu":
        return None
    small = [one for one in needs.slices if one.preset == preset.name and _num_devices(one.slice) <= len(devices)]
    own = [one for one in small if not is_estimate(one, devices)]
    limit = devices[0].bytes_limit or memory_bytes(devices[0].kind) or 0
    fitting = [one for one in (own if same_chip or own else small) if one.gib <= RECOMMENDED_SHARE * limit / GIB]
    return max(fitting, key=lambda one: _num_devices(one.slice), default=None)


def _num_pixels(preset: Preset) -> int:
    return preset.width * preset.height * preset.num_frames


@functools.cache
def step_flops(name: str) -> float:
    """Return the floating-point operations of one step of a video with the default size of preset `name`."""
    preset = find_preset(name)
    (family, _), request = find_family(preset), example_request(preset)
    return family.step_flops(preset.network_configs(), request, request.num_branches).total


def _chip_name(shape: str) -> str:
    return shape.partition(":")[0]


def _num_devices(shape: str) -> int:
    chip, _, size = shape.partition(":")
    return math.prod(map(int, size.split("x"))) * DEVICES_OF_A_CHIP.get(chip, 1)
