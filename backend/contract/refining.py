"""Videos in two sizes: made at half the size first, then enlarged as latents, and refined at the full size in a few steps.

Source: the makers' two stages for LTX-2, as in diffusers' `LTX2LatentUpsamplePipeline`: the second begins at 0.909375 of noise.
"""

from typing import TypeVar

from backend.contract.settings import VideoSettings, find_preset
from backend.errors import RequestError
from presets import Preset

Settings = TypeVar("Settings", bound=VideoSettings)

REFINING_LEVELS = (0.909375, 0.725, 0.421875)
"""The noise at which each refining step begins. Source: diffusers, pipelines/ltx2/utils.py, STAGE_2_DISTILLED_SIGMA_VALUES."""

SIZES = 2  # the full size is so many times the first, on both sides
COST = 1.5  # a step's seconds grow with the tokens to this power: between 1 for its projections and 2 for its attention
REFINING_COST = float(SIZES**2) ** COST
"""What a refining step costs beside one before it, estimated."""

HALF = "half."
"""Stands before the names of the inputs and conditions that belong to the first size."""


def refining_steps(request: VideoSettings) -> int:
    """How many of the last steps refine the video at its full size; 0 for a video that has one size from the beginning."""
    return len(REFINING_LEVELS) if find_preset(request.preset).refines else 0


def is_refining(request: VideoSettings, step: int) -> bool:
    """Whether this step, 0 or more, refines the video at its full size."""
    return 0 < refining_steps(request) and step >= request.num_steps - refining_steps(request)


def first_size(request: Settings) -> Settings:
    """The request at the size at which its steps begin: its own, or half of it."""
    if not refining_steps(request):
        return request
    return request.model_copy(update={"width": request.width // SIZES, "height": request.height // SIZES})


def at_step(request: Settings, step: int) -> Settings:
    """The request at the size of this step."""
    return request if is_refining(request, step) else first_size(request)


def relative_costs(request: VideoSettings) -> list[float]:
    """What each step costs beside one at the first size, estimated from the sizes."""
    return [REFINING_COST if is_refining(request, step) else 1.0 for step in range(request.num_steps)]


def check_refining(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError if no step is left for the first size."""
    least = len(REFINING_LEVELS) + 1
    if preset.refines and request.steps < least:
        rule = f"must be {least} or more: the last {least - 1} refine the video at its full size"
        raise RequestError(f"steps={request.steps}", rule, f"{preset.steps} is usual")
