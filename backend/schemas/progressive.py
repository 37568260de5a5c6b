"""Videos in two sizes: the first steps are made at half the size, the others at all of it.

A preset that `refines` makes clean latents at half the size, enlarges them by a network and refines them in a few steps. Source:
the makers' two stages for LTX-2, as in diffusers' `LTX2LatentUpsamplePipeline`: the second begins at 0.909375 of noise. With
progressive resolution (`backend.schemas.progressive_noise`) the latents are enlarged as they are, with their noise.
"""

from backend.errors import RequestError
from backend.schemas.progressive_noise import count_half_size_steps
from backend.schemas.settings import Settings, VideoSettings, find_preset
from presets import Preset

REFINING_LEVELS = (0.909375, 0.725, 0.421875)
"""The noise at which each refining step begins. Source: diffusers, pipelines/ltx2/utils.py, STAGE_2_DISTILLED_SIGMA_VALUES."""

COST = 1.5  # a step's seconds grow with the tokens to this power: between 1 for its projections and 2 for its attention

HALF = "half."
"""Stands before the names of the inputs and conditions that belong to the first size."""


def num_half_size_steps(request: VideoSettings) -> int:
    """How many of the first steps are made at half the video's size; 0 for a video that has one size from the beginning."""
    if find_preset(request.preset).refines:
        return max(0, request.num_steps - len(REFINING_LEVELS))
    if not request.progressive:
        return 0
    geometry = _halve_size(request).geometry()
    return count_half_size_steps(request, geometry.latent_height, geometry.latent_width)


def is_half_size_step(request: VideoSettings, step: int) -> bool:
    """Whether this step, 0 or more, is made at half the video's size."""
    return step < num_half_size_steps(request)


def request_at_first_size(request: Settings) -> Settings:
    """The request at the size at which its steps begin: its own, or half of it, rounded up to whole tokens. A video of that size
    alone has no progressive resolution."""
    return _halve_size(request) if num_half_size_steps(request) else request


def at_step(request: Settings, step: int) -> Settings:
    """The request at the size of this step."""
    return request_at_first_size(request) if is_half_size_step(request, step) else request


def full_size_cost(request: VideoSettings) -> float:
    """What a step at the full size costs beside one at the first size, estimated from their tokens."""
    return (request.geometry().num_tokens / request_at_first_size(request).geometry().num_tokens) ** COST


def relative_step_costs(request: VideoSettings) -> list[float]:
    """What each step costs beside one at the first size, estimated from the sizes."""
    small, cost = num_half_size_steps(request), full_size_cost(request)
    return [1.0 if step < small else cost for step in range(request.num_steps)]


def check_refining(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError if no step is left for the first size."""
    least = len(REFINING_LEVELS) + 1
    if preset.refines and request.steps < least:
        rule = f"must be {least} or more: the last {least - 1} refine the video at its full size"
        raise RequestError(f"steps={request.steps}", rule, f"{preset.steps} is usual")


def _halve_size(request: Settings) -> Settings:
    preset = find_preset(request.preset)
    token = preset.vae_scale_spatial * preset.patch
    sides = {name: -(-getattr(request, name) // (2 * token)) * token for name in ("width", "height")}
    return request.model_copy(update={**sides, "progressive": 0})
