"""Count the floating-point operations of each stage of a video, from which the devices' rate is computed."""

import dataclasses
import functools

from backend.chips import CHIPS, DEVICE_KINDS
from backend.pipeline.chunks import divide_into_chunks
from backend.pipeline.loaded import LoadedModel
from backend.schemas.events import VideoResult
from backend.schemas.progressive import request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from backend.schemas.windows import step_calls


def add_flops(result: VideoResult, loaded: LoadedModel) -> VideoResult:
    """Add the floating-point operations of each stage, and the devices' peak rate, to the result of a whole video."""
    return dataclasses.replace(result, flops=count_stage_flops(loaded, result.request), peak_flops=total_peak_flops(loaded))


def count_stage_flops(loaded: LoadedModel, request: GenerationRequest) -> dict[str, float]:
    """Return the floating-point operations of a whole video by stage. A multiplication with an addition counts as two operations.

    With the step cache or Sol-Attn, the result has no entry for denoising, because the work depends on the video. The count omits
    the attention that NAG adds (less than one per cent of a step) and the network that enlarges latents.
    """
    flops = {"encode": loaded.model.encode_flops(request), "decode": loaded.model.decode_flops(request)}
    if not request.uses_step_cache and not request.sparse:
        flops["denoise"] = _denoise_flops(loaded, request)
    return flops


def _denoise_flops(loaded: LoadedModel, request: GenerationRequest) -> float:
    plan = plan_steps(request, loaded.model.spec.boundary)
    configs = request.resolved_preset.network_configs()
    most, fewest = request.num_branches, request.num_branches - request.is_guided

    @functools.cache
    def flops_of_step(is_guided: bool, is_small: bool) -> float:
        sized = request_at_first_size(request) if is_small else request
        return loaded.family.step_flops(configs, sized, most if is_guided else fewest).total

    num_chunks = sum(1 for _ in divide_into_chunks(loaded.model, request))
    calls = zip(plan, step_calls(request), strict=True)
    return num_chunks * sum(flops_of_step(step.is_guided, step.is_small) * count for step, count in calls)


def total_peak_flops(loaded: LoadedModel) -> float | None:
    """Return the published peak of all the model's devices together, in operations per second; None if it is unknown."""
    chips = [DEVICE_KINDS.get(device.device_kind) for device in loaded.model.layout(True).mesh.devices.flat]
    known = [CHIPS[chip].peak_flops for chip in chips if chip is not None]
    return sum(known) if len(known) == len(chips) else None
