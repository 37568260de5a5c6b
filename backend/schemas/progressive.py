"""Videos whose first steps run at half the size, and the other steps at the full size.

A preset whose `refines` is true finishes latents at half the size, enlarges them with a network and refines them in a few steps.
Source: the authors' two stages for LTX-2, as in diffusers' `LTX2LatentUpsamplePipeline`: the second stage starts at noise level
0.909375. With progressive resolution (`backend.schemas.progressive_noise`) the noisy latents are enlarged.
"""

from backend.errors import RequestError
from backend.schemas.progressive_noise import count_half_size_steps
from backend.schemas.settings import Settings, VideoSettings
from presets import Preset

REFINING_LEVELS = (0.909375, 0.725, 0.421875)
"""The noise level at the start of each refining step. Source: diffusers, pipelines/ltx2/utils.py, STAGE_2_DISTILLED_SIGMA_VALUES.
"""

TOKEN_COST_EXPONENT = 1.5
"""Assumed: a step's time grows with its tokens to this power, between 1 for projections and 2 for attention."""

HALF = "half."
"""Prefix of the names of inputs and conditions that belong to the half size."""


def num_half_size_steps(request: VideoSettings) -> int:
    """Return how many of the first steps run at half the video's size."""
    if request.resolved_preset.refines:
        return max(0, request.num_steps - len(REFINING_LEVELS))
    if not request.progressive:
        return 0
    geometry = _halve_size(request).geometry()
    return count_half_size_steps(request, geometry.latent_height, geometry.latent_width)


def is_half_size_step(request: VideoSettings, step: int) -> bool:
    """Return whether this step, from 0, runs at half the video's size."""
    return step < num_half_size_steps(request)


def request_at_first_size(request: Settings) -> Settings:
    """Return the request at the size of its first step: the request itself, or a copy at half the width and height.

    Half sizes are rounded up to whole tokens. The copy has no progressive resolution.
    """
    return _halve_size(request) if num_half_size_steps(request) else request


def at_step(request: Settings, step: int) -> Settings:
    """Return the request at the size at which this step runs. `step` counts from 0."""
    return request_at_first_size(request) if is_half_size_step(request, step) else request


def full_size_cost(request: VideoSettings) -> float:
    """Estimate the cost of a full-size step relative to a step at the first size, from the numbers of tokens."""
    return (request.geometry().num_tokens / request_at_first_size(request).geometry().num_tokens) ** TOKEN_COST_EXPONENT


def check_refining(request: VideoSettings, preset: Preset) -> None:
    """Check that at least one step runs at half the size, before the refining steps. Raises: RequestError."""
    least = len(REFINING_LEVELS) + 1
    if preset.refines and request.steps < least:
        rule = f"must be {least} or more: the last {least - 1} refine the video at its full size"
        raise RequestError(f"steps={request.steps}", rule, f"{preset.steps} is usual")


def _halve_size(request: Settings) -> Settings:
    preset = request.resolved_preset
    token = preset.vae_scale_spatial * preset.patch
    sides = {name: -(-getattr(request, name) // (2 * token)) * token for name in ("width", "height")}
    return request.model_copy(update={**sides, "progressive": 0})
