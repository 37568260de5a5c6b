"""Estimate how long a video takes, from this machine's earlier videos or the published peak performance of its TPUs."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from backend.chips import CHIPS, DEVICE_KINDS
from backend.models import find_family
from backend.schemas.driving_video import count_segments
from backend.schemas.progressive import request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import UPSCALER, Shape
from backend.schemas.step_plan import SPARSE_COST, plan_steps
from backend.schemas.windows import equivalent_tokens, mean_step_calls
from backend.schemas.worker import Device

Basis = Literal["measured", "scaled", "predicted"]
# A step's time grows with this power of the number of tokens. Linear layers grow with power 1 and dominate short videos.
# Attention grows with power 2 and dominates long videos.
_SCALING = 1.5
# In a shorter stage, all programs were already compiled, or the model was already loaded.
_DONE_SECONDS = {"compile": 0.5, "load": 0.2}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The timings of a finished video: `seconds` by stage. `device` is the kind of device, "" if not known."""

    shape: Shape
    steps: int
    num_tokens: int
    seconds: dict[str, float]
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected seconds of a video, with parts for compiling and loading: 0 if that is done, None if not known.

    `basis` is "measured" from `runs` runs of the same shape, "scaled" from runs of other shapes of the model, or "predicted" from
    the devices' published peak performance.
    """

    seconds: float
    compile_seconds: float | None
    is_warm: bool
    basis: Basis
    runs: int
    load_seconds: float | None = 0.0


def estimate(
    request: GenerationRequest, shape: Shape, runs: Sequence[Run], is_warm: bool, is_model_cached: bool = True
) -> Estimate | None:
    """Estimate the time of a video from earlier runs. `runs` are newest first. Return None without runs of the same model."""
    same_model = [run for run in runs if run.shape.model == shape.model]
    same = [run for run in same_model if run.shape == shape]
    used = (same or same_model)[:20]
    if not used:
        return None
    tokens, num_pixels = equivalent_tokens(request), _num_pixels(shape)
    totals = []
    for run in used:  # its seconds, except for compiling and loading, scaled to the request's steps and size
        size = (tokens / max(run.num_tokens, 1)) ** _SCALING
        branches = (2 if shape.is_guided else 1) / (2 if run.shape.is_guided else 1)
        step = run.seconds.get("denoise", 0.0) / max(run.steps, 1)
        rest = run.seconds.get("encode", 0.0) + run.seconds.get("decode", 0.0) * num_pixels / max(_num_pixels(run.shape), 1)
        totals.append(step * request.num_steps * size * branches + rest)
    compiling = 0.0 if is_warm else median_seconds("compile", same_model)
    loading = 0.0 if is_model_cached else median_seconds("load", same_model)
    return Estimate(
        seconds=median(totals) + (compiling or 0.0) + (loading or 0.0),
        compile_seconds=compiling,
        is_warm=is_warm,
        basis="measured" if same else "scaled",
        runs=len(used),
        load_seconds=loading,
    )


def estimate_upscaling(shape: Shape, runs: Sequence[Run], num_weights: Callable[[str], int | None]) -> Estimate | None:
    """Estimate the upscaling of a video from the seconds per pixel of earlier runs, newest first. None without usable runs.

    Runs of other upscalers count only if this upscaler has no runs. They are scaled by the number of weights, because each
    weight is used once per pixel.
    """
    every = [run for run in runs if run.shape.task == shape.task]
    same_model = [run for run in every if run.shape.model == shape.model]
    shares = {run.shape.model: 1.0 for run in same_model}
    if not shares and (own := num_weights(shape.model.removeprefix(UPSCALER))):
        counts = {run.shape.model: num_weights(run.shape.model.removeprefix(UPSCALER)) for run in every}
        shares = {name: own / count for name, count in counts.items() if count}
    used = [run for run in same_model or every if run.shape.model in shares][:20]
    if not used:
        return None
    rates = [run.seconds.get("upscale", 0.0) * shares[run.shape.model] / max(_num_pixels(run.shape), 1) for run in used]
    basis = "measured" if any(run.shape == shape for run in used) else "scaled"
    seconds = median(rates) * _num_pixels(shape)
    return Estimate(seconds=seconds, compile_seconds=0.0, is_warm=True, basis=basis, runs=len(used))


def runs_on(device: str, runs: Sequence[Run]) -> list[Run]:
    """Return the runs on this kind of device and the runs on unknown devices. If `device` is "", return all runs."""
    return [run for run in runs if not device or run.device in ("", device)]


def _num_pixels(shape: Shape) -> int:
    return shape.width * shape.height * shape.num_frames


def median_seconds(stage: str, runs: Sequence[Run]) -> float | None:
    """Return the median seconds of a stage in the last 20 runs that needed this stage. None without such runs."""
    seconds = [run.seconds[stage] for run in runs if run.seconds.get(stage, 0.0) > _DONE_SECONDS[stage]]
    return median(seconds[:20]) if seconds else None


def predicted_seconds(request: GenerationRequest, devices: Sequence[Device]) -> float | None:
    """Predict the seconds of the denoising steps on these devices. None if the devices are not TPUs of one known kind."""
    names = {DEVICE_KINDS.get(device.kind) for device in devices}
    name = names.pop() if len(names) == 1 else None
    if name is None:
        return None
    chip = CHIPS[name]
    preset = request.resolved_preset
    family, spec = find_family(preset)
    configs, geometry = preset.network_configs(), request.geometry()

    @functools.cache
    def floor(is_small: bool) -> float:
        sized = request_at_first_size(request) if is_small else request
        flops = family.step_flops(configs, sized, request.num_branches)
        # The compiler predicts nearly the same time for 8-bit matrices as for others, although their peak rate is higher.
        return dataclasses.replace(flops, quantized=0.0).floor_seconds(chip, len(devices))

    floors = sum(floor(step.is_small) * (SPARSE_COST if step.is_sparse else 1.0) for step in plan_steps(request))
    length = geometry.num_latent_frames
    chunks = count_segments(request) if request.drive else -(-length // (spec.chunk or length))
    return spec.over_floor * floors * chunks * mean_step_calls(request)
