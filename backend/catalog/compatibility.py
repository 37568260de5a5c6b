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
from presets.needs import Needs, SliceNeed, find_needs

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
    """The verdict for a model.

    Attributes:
        memory_bytes: memory of all devices together, None if it is not known.
        smallest: the smallest known slice on which the model fits.
    """

    verdict: Verdict
    memory_bytes: int | None = None
    smallest: SliceNeed | None = None


def judge_compatibility(presets: Sequence[Preset], devices: Sequence[Device]) -> Compatibility:
    """Judge whether the devices of one worker can run the model of these presets."""
    needs = find_needs(presets[0].model)
    smallest = _smallest_slice(needs, devices)
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
    """Return the best preset for the devices of one worker, and its predicted needs from `presets/needs.json`.

    Candidates are the presets of `fitting_presets`. The best candidate has the largest networks, then the largest video, then the
    shortest predicted time. Networks of nearly the largest size count as equally large, because sparse attention adds a few
    weights. If no candidate is predicted to fit, return the demo model and None.
    """
    fitting = fitting_presets(devices, can_use, task)
    if not fitting:
        return list_presets()[0], None
    largest = max(_network_bytes(preset) for preset, _ in fitting)
    return max((pair for pair in fitting if _network_bytes(pair[0]) >= EQUAL_SIZE * largest), key=lambda pair: _rank(*pair))


def fitting_presets(
    devices: Sequence[Device], can_use: Callable[[Preset], bool] = lambda preset: True, task: Task = "t2v"
) -> list[tuple[Preset, SliceNeed]]:
    """Return the presets that are predicted to fit the devices, each with its needs on one slice.

    This is the largest slice in `presets/needs.json` that has at most as many devices and on which the preset fits. The presets
    need a prompt only, or with the task "i2v" a prompt and a first frame. Live presets and presets with control blocks are
    excluded. `can_use` excludes further presets. Figures of other chips are used only if no preset has figures for the chips of
    this machine (`is_estimate`).
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
    """Return the preset's needs on the largest slice in these devices on which it fits. None without such a slice.

    With `same_chip`, only slices of this machine's chip count. Otherwise only slices of other chips count, if the preset has no
    figures for this machine's chip.
    """
    needs = find_needs(preset.model)
    if needs is None or not devices or devices[0].kind == "cpu":
        return None
    small = [one for one in needs.slices if one.preset == preset.name and _num_devices(one.slice) <= len(devices)]
    own = [one for one in small if not is_estimate(one, devices)]
    limit = devices[0].bytes_limit or memory_bytes(devices[0].kind) or 0
    fitting = [one for one in (own if same_chip or own else small) if one.gib <= RECOMMENDED_SHARE * limit / GIB]
    return max(fitting, key=lambda one: _num_devices(one.slice), default=None)


def _network_bytes(preset: Preset) -> int:
    needs = find_needs(preset.model)
    return needs.device_bytes if needs else 0


def _rank(preset: Preset, need: SliceNeed) -> tuple[int, float]:
    return _num_pixels(preset), -denoising_seconds(preset, need)


def _num_pixels(preset: Preset) -> int:
    return preset.width * preset.height * preset.num_frames


@functools.cache
def step_flops(name: str) -> float:
    """Return the floating-point operations of one step of a video with the default size of preset `name`."""
    preset = find_preset(name)
    family, _ = find_family(preset)
    request = example_request(preset)
    return family.step_flops(preset.network_configs(), request, request.num_branches).total


def _smallest_slice(needs: Needs | None, devices: Sequence[Device]) -> SliceNeed | None:
    """Return the smallest known slice of this machine's kind of chip. Without such a slice, return the smallest slice of
    any kind.

    None if no slice is known.
    """
    if needs is None or not needs.slices:
        return None
    chip = DEVICE_KINDS.get(devices[0].kind) if devices else None
    own = [one for one in needs.slices if _chip_name(one.slice) == chip]
    return min(own or needs.slices, key=lambda one: _num_devices(one.slice))


def _chip_name(shape: str) -> str:
    return shape.partition(":")[0]


def _num_devices(shape: str) -> int:
    chip, _, size = shape.partition(":")
    return math.prod(map(int, size.split("x"))) * DEVICES_OF_A_CHIP.get(chip, 1)
